"""Presets: published systems as sets of values, and how one is written into ``params.yaml``.

``presets.yaml`` beside this file holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML

from cse.errors import CseError, nearest
from cse.settings.edit import read_values, write_values
from cse.settings.load import PARAMS_FILE, flatten
from cse.settings.tree import Settings

# Together these groups are the system; what a preset does not name there goes back to its default ...
SYSTEM_GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
# ... except what describes the machine and not the system: no preset names it, and `preset use` leaves it alone.
MACHINE_KEYS = (
    "train.device",
    "train.precision",
    "train.workers",
    "train.mini_batch_size",
    "train.row_groups",
    "train.save_seconds",
)
# The one key of the data that is a part of the system: what its loss compares.
VIEW = "data.view"


@dataclass(frozen=True)
class RowSelector:
    """One row of a table of a paper, as ``published.json`` names it.

    Attributes:
        paper: ``PromCSE``, ``DCPCSE`` or ``D2CSE``.
        table: its number.
        setting: supervision, and the ablation where the table is one.
        model: the row's name.
        backbone: the language model under it.
    """

    paper: str
    table: int
    setting: str
    model: str
    backbone: str


@dataclass(frozen=True)
class Preset:
    """A system of the literature.

    Attributes:
        name: what ``cse preset use`` takes.
        description: the system in a few words.
        source: where the values stand: paper and table, README.
        expect: what a run should score, and other numbers where papers or users disagree; may be empty.
        notes: where sources disagree, and what differs from the published run; may be empty.
        rows: rows of the three papers that the preset reproduces, the best known first; may be empty.
        settings: values by dotted key.
    """

    name: str
    description: str
    source: str
    expect: str
    notes: str
    rows: tuple[RowSelector, ...]
    settings: Mapping[str, Any]

    @property
    def data(self) -> str:
        """On which text it trains, in a few words."""
        source = self.settings.get("data.source")
        if source is None:
            return f"yours ({VIEW}: {self.settings[VIEW]})"
        found = data_in_words(self.settings)
        return f"{found}; duplicates and rows that occur in the evaluation data are kept, as in the published run"


def preset_names() -> list[str]:
    """Return the names of all presets, in the order of the file."""
    return list(_presets())


def load_preset(name: str) -> Preset:
    """Return one preset; raises ``CseError`` with the nearest name where there is none of this name."""
    try:
        return _presets()[name]
    except KeyError:
        raise CseError(f"{name}: no such preset{nearest(name, _presets())}; `cse preset list` names all") from None


def quoted_rows() -> Mapping[RowSelector, str]:
    """Return the rows that no preset reproduces, each with the reason."""
    return MappingProxyType(
        {row: entry["reason"] for entry in _document()["quoted"] for row in _selectors(entry["rows"])}
    )


def data_in_words(values: Mapping[str, Any]) -> str:
    """Say where training rows come from, by the values of the group ``data`` (dotted keys)."""
    match values["data.source"]:
        case "sample":
            return "generated sample text"
        case "hub":
            file = values.get("data.hub_file") or values.get("data.hub_split", "train")
            return f"{values['data.hub_id']}/{file} from the hub"
        case _:
            return f"the file in {values.get('data.train_path', 'data.train_path')}"


def apply_preset(
    name: str, params_path: Path | str = PARAMS_FILE, *, keep_data: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Write a preset into a settings file; comments, order and all keys outside the system stay as they are.

    Keys of the system (``SYSTEM_GROUPS``) that the preset does not name go back to their defaults, except
    ``MACHINE_KEYS``. A system of a paper brings the paper's rows with it. A file that does not exist is made, complete
    and with a comment for each key. The result is checked before anything is written; the file changes all at once or
    not at all.

    Args:
        name: of the preset.
        params_path: the settings file.
        keep_data: leave the group ``data`` as it is but for the view, whatever the preset says of it.

    Returns:
        What changed: ``{"train.epochs": (1, 3)}``. A key that the file did not have counts with its default.

    Raises:
        CseError: unknown preset, a file that is not valid YAML, or a result that the settings refuse, for example
            because of the user's own ``data`` keys.
    """
    preset = load_preset(name)
    path = Path(params_path)
    _, present = read_values(path)
    defaults = flatten(Settings().model_dump())
    chosen = {key: value for key, value in preset.settings.items() if not (keep_data and _is_own_data(key))}
    values = {
        key: chosen.get(key, default)
        for key, default in defaults.items()
        if key in chosen or (key in present and _is_system(key))
    }
    return write_values(path, values, where=f"{path.name} with preset {name!r}")


def _is_system(key: str) -> bool:
    return key.split(".")[0] in SYSTEM_GROUPS and key not in MACHINE_KEYS


def _is_own_data(key: str) -> bool:
    return key.startswith("data.") and key != VIEW


@cache
def _document() -> dict[str, Any]:
    text = files("cse.settings").joinpath("presets.yaml").read_text("utf-8")
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return document


@cache
def _presets() -> Mapping[str, Preset]:
    presets = {}
    for name, entry in _document()["presets"].items():
        rows = tuple(_selectors(entry.get("rows", ())))
        values = MappingProxyType(flatten(entry["settings"]))
        presets[name] = Preset(name=name, **{"expect": "", "notes": "", **entry, "rows": rows, "settings": values})
    return MappingProxyType(presets)


def _selectors(entries: Iterable[Mapping[str, Any]]) -> Iterator[RowSelector]:
    """Give one selector for each table of each entry."""
    for entry in entries:
        for table in entry["table"]:
            yield RowSelector(**{**entry, "table": table})
