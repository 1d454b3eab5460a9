"""Presets: settings of published systems, and writing one into ``params.yaml``.

They are defined in ``presets.yaml`` next to this file.
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

# These groups make up the system. Keys in them that a preset does not set are reset to their defaults ...
SYSTEM_GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
# ... except those that describe the machine: no preset sets them, and `preset use` leaves them alone.
MACHINE_KEYS = (
    "train.device",
    "train.precision",
    "train.workers",
    "train.mini_batch_size",
    "train.row_groups",
    "train.save_seconds",
)
# The one data key that belongs to the system: it decides what the loss compares.
VIEW = "data.view"


@dataclass(frozen=True)
class RowSelector:
    """One row of a paper's table, as identified in ``published.json``."""

    paper: str
    table: int
    setting: str
    model: str
    backbone: str


@dataclass(frozen=True)
class Preset:
    """A published system; ``presets.yaml`` says what each field holds."""

    name: str
    description: str
    source: str
    expect: str
    notes: str
    rows: tuple[RowSelector, ...]
    settings: Mapping[str, Any]

    @property
    def data(self) -> str:
        """Short description of its training text."""
        source = self.settings.get("data.source")
        if source is None:
            return f"yours ({VIEW}: {self.settings[VIEW]})"
        found = data_in_words(self.settings)
        return f"{found}; duplicates and rows that occur in the evaluation data are kept, as in the published run"


def preset_names() -> list[str]:
    """Return the names of all presets, in file order."""
    return list(_presets())


def load_preset(name: str) -> Preset:
    """Return a preset; raise ``CseError`` with the nearest name if it does not exist."""
    try:
        return _presets()[name]
    except KeyError:
        raise CseError(f"{name}: no such preset{nearest(name, _presets())}; `cse preset list` names all") from None


def quoted_rows() -> Mapping[RowSelector, str]:
    """Return the rows that no preset reproduces, with the reason for each."""
    return MappingProxyType(
        {row: entry["reason"] for entry in _document()["quoted"] for row in _selectors(entry["rows"])}
    )


def data_in_words(values: Mapping[str, Any]) -> str:
    """Describe where training rows come from, given the values of group ``data`` (dotted keys)."""
    match values["data.source"]:
        case "sample":
            return "generated sample text"
        case "hub":
            return f"{values['data.hub_id']}/{values['data.hub_file']} from the hub"
        case _:
            return f"the file in {values.get('data.train_path', 'data.train_path')}"


def apply_preset(
    name: str, params_path: Path | str = PARAMS_FILE, *, keep_data: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Write a preset into a settings file, keeping comments, order and all keys outside the system.

    Keys of the system (``SYSTEM_GROUPS``) that the preset does not set are reset to their defaults, except
    ``MACHINE_KEYS``. Presets of papers also select the paper's training data. A missing file is created with the
    common keys and a comment for each. The result is checked first, and the file is replaced atomically.

    Args:
        keep_data: keep the user's group ``data``, whatever the preset sets there. ``data.view`` is the preset's, unless
            the user's rows are made from documents or categories.

    Returns:
        What changed: ``{"train.epochs": (1, 3)}``. The old value of a key missing from the file is its default.
    """
    path = Path(params_path)
    _, present = read_values(path)
    values = preset_values(name, present.get(VIEW), keep_data=keep_data)
    return write_values(path, values, where=f"{path.name} with preset {name!r}")


def preset_values(name: str, view: Any, *, keep_data: bool) -> dict[str, Any]:
    """Return the values of a preset by dotted key, defaults for what it leaves open of the system."""
    preset = load_preset(name).settings
    chosen = {key: value for key, value in preset.items() if not (keep_data and _is_own_data(key))}
    if keep_data and view in ("documents", "categories"):  # another view could not read that source
        chosen.pop(VIEW, None)
    defaults = flatten(Settings().model_dump())
    return {key: chosen.get(key, default) for key, default in defaults.items() if key in chosen or _is_system(key)}


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
    """Yield one selector for each table of each entry."""
    for entry in entries:
        for table in entry["table"]:
            yield RowSelector(**{**entry, "table": table})
