"""Presets: published systems as sets of values, and how one is written into ``params.yaml``.

``presets.yaml`` beside this file holds them. The file of the user is edited in place, value by value: a dump of the
parsed document would move comments and lose the user's layout.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node

from cse.errors import CseError, nearest
from cse.files import publish_file
from cse.settings.document import default_params_text, yaml_value
from cse.settings.load import PARAMS_FILE, check_settings, flatten, set_key
from cse.settings.tree import Settings

# Together these groups are the system; what a preset does not name there goes back to its default ...
SYSTEM_GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
# ... except what belongs to the machine and not to the system.
MACHINE_KEYS = ("train.device", "train.precision")


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


def apply_preset(name: str, params_path: Path | str = PARAMS_FILE) -> dict[str, tuple[Any, Any]]:
    """Write a preset into a settings file; comments, order and all keys outside the system stay as they are.

    Keys of the system (``SYSTEM_GROUPS``) that the preset does not name go back to their defaults, except
    ``MACHINE_KEYS``. A file that does not exist is made, complete and with a comment for each key. The result is
    checked before anything is written; the file changes all at once or not at all.

    Returns:
        What changed: ``{"train.epochs": (1, 3)}``. A key that the file did not have counts with its default.

    Raises:
        CseError: unknown preset, a file that is not valid YAML, or a result that the settings refuse, for example
            because of the user's own ``data`` keys.
    """
    preset = load_preset(name)
    path = Path(params_path)
    text = _read(path) if path.exists() else default_params_text()
    tree = _parse(text, path)
    defaults = flatten(Settings().model_dump())
    present = flatten(tree)
    edits, changed = {}, {}
    for key, default in defaults.items():
        if key not in preset.settings and (key not in present or not _is_system(key)):
            continue
        value = preset.settings.get(key, default)
        if key not in present or present[key] != value:
            edits[key] = value
            set_key(tree, key, value)
        if present.get(key, default) != value:
            changed[key] = (present.get(key, default), value)
    check_settings(tree, where=f"{path.name} with preset {name!r}")
    _replace(path, _edit(text, edits, tree, path))
    return changed


def _is_system(key: str) -> bool:
    return key.split(".")[0] in SYSTEM_GROUPS and key not in MACHINE_KEYS


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


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:  # line ends stay what they are
            return file.read()
    except UnicodeDecodeError as error:
        raise CseError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        tree = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise CseError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    if not isinstance(tree, dict | None):
        raise CseError(f"{path}: expected groups of settings (data:, train:, ...), found {type(tree).__name__}")
    return tree or {}


def _edit(text: str, edits: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> str:
    """Set each key in a YAML document; what comes out must read as ``expected``."""
    try:
        for key, value in edits.items():
            text = _set_in_text(text, key, value)
        kept = (YAML(typ="safe", pure=True).load(text) or {}) == expected
    except MarkedYAMLError:  # for example a reference to an anchor that one of the edits replaced
        kept = False
    if not kept:
        raise CseError(f"{path}: YAML anchors or an unusual layout stand in the way; write the keys out and try again")
    return text


def _set_in_text(text: str, key: str, value: Any) -> str:
    """Set a dotted key in a YAML document, leaving every other character as it is."""
    node, indent, names = YAML(typ="safe", pure=True).compose(text), 0, key.split(".")
    while isinstance(node, MappingNode):
        if node.value:
            indent = node.value[0][0].start_mark.column
        child = next((child for name, child in node.value if name.value == names[0]), None)
        if child is None:
            return _insert(text, node, names, value, indent)
        names, node, indent = names[1:], child, indent + 2
        if not names:
            start, end = node.start_mark.index, node.end_mark.index
            gap = "" if start == 0 or text[start - 1].isspace() else " "
            return text[:start] + gap + yaml_value(value) + text[end:]
    return _insert(text, None, names, value, 0)


def _insert(text: str, node: MappingNode | None, names: list[str], value: Any, indent: int) -> str:
    """Add ``names[0]: {names[1]: ... value}`` behind the last entry of a group (None: an empty document)."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if node is not None and node.flow_style:
        end = node.end_mark.index - 1
        entry = "".join(f"{name}: {{" for name in names[:-1]) + f"{names[-1]}: {yaml_value(value)}"
        comma = ", " if node.value else ""
        return text[:end].rstrip() + comma + entry + "}" * len(names) + text[end + 1 :]
    lines = [f"{' ' * (indent + 2 * depth)}{name}:" for depth, name in enumerate(names)]
    entry = newline.join(lines) + f" {yaml_value(value)}{newline}"
    at = len(text) if node is None else _line_end(text, _last_leaf(node).end_mark.index)
    before = text[:at] if not text[:at] or text[:at].endswith("\n") else text[:at] + newline
    return before + entry + text[at:]


def _last_leaf(node: Node) -> Node:
    while isinstance(node, MappingNode) and node.value and not node.flow_style:
        node = node.value[-1][1]
    return node


def _line_end(text: str, at: int) -> int:
    """Return the index behind the line that ``at`` is on; block values may already end at the start of the next."""
    if at > 0 and text[at - 1] == "\n":
        return at
    return text.find("\n", at) + 1 or len(text)


def _replace(path: Path, text: str) -> None:
    path = path.resolve()  # a link keeps pointing where it points
    with publish_file(path) as new:
        with new.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
        if path.exists():
            shutil.copymode(path, new)
