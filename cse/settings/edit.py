"""Change values of a settings file in place, keeping comments, order, layout and all other keys.

Dumping the parsed document would move comments and lose the user's layout, so the text is edited value by value.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from cse.errors import CseError
from cse.outputs import publish_file
from cse.settings.document import params_text, yaml_value
from cse.settings.load import Settings, check_settings, flatten, parse_tree, read_text, set_key


def read_values(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a settings file as text and as values by dotted key; a missing file counts as the default one."""
    text = read_text(path) if path.exists() else params_text()
    return text, flatten(parse_tree(text, str(path)))


def write_values(path: Path, values: Mapping[str, Any], where: str | None = None) -> dict[str, tuple[Any, Any]]:
    """Set values by dotted key, check the result and replace the file atomically.

    Args:
        path: a settings file; if missing, it is created with the common keys and a comment for each.
        values: values to set. A value the file already has keeps its spelling; a default that it lacks is not added.

    Returns:
        What changed: ``{"train.epochs": (1, 3)}``. The old value of a key missing from the file is its default.
    """
    text, _ = read_values(path)
    tree, defaults = parse_tree(text, str(path)), flatten(Settings().model_dump(mode="json"))
    changed = {}
    for key, value in values.items():
        before = _value_at(tree, key, defaults.get(key))
        if before != value:
            changed[key] = (before, value)
            set_key(tree, key, value)
    check_settings(tree, where=where or str(path))
    _replace(path, _edit(text, {key: value for key, (_, value) in changed.items()}, tree, path))
    return changed


def _value_at(tree: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return the value of a dotted key, or the default where the tree has none."""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return default
        value = value[name]
    return value


def _edit(text: str, edits: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> str:
    """Set each key in a YAML document and check that the result parses to ``expected``."""
    try:
        for key, value in edits.items():
            text = _set_in_text(text, key, value)
        kept = (YAML(typ="safe", pure=True).load(text) or {}) == expected
    except MarkedYAMLError:  # for example an alias whose anchor an edit replaced
        kept = False
    if not kept:
        raise CseError(
            f"{path}: cannot edit {', '.join(edits)} in place: YAML anchors or an unusual layout; write the keys out "
            "and try again"
        )
    return text


def _set_in_text(text: str, key: str, value: Any) -> str:
    """Set a dotted key in a YAML document without changing any other character."""
    node, indent, names = YAML(typ="safe", pure=True).compose(text), 0, key.split(".")
    while isinstance(node, MappingNode):
        if node.value:
            indent = node.value[0][0].start_mark.column
        found = next((pair for pair in node.value if pair[0].value == names[0]), None)
        if found is None:
            return _insert(text, node, names, value, indent)
        names, node, indent = names[1:], found[1], indent + 2
        if not names:
            colon = text.index(":", found[0].end_mark.index) + 1
            start, end = node.start_mark.index, _last_leaf(node).end_mark.index
            before = text[colon:start]
            if start == end:  # nothing stands there, as where DVC writes null: its mark lies behind the comments
                before, end = "", colon
            elif not (isinstance(node, CollectionNode) and not node.flow_style):
                return text[:start] + ("" if before[-1:].isspace() else " ") + yaml_value(value) + text[end:]
            return text[:colon] + " " + yaml_value(value) + before.rstrip() + text[end:]
    return _insert(text, None, names, value, 0)


def _insert(text: str, node: MappingNode | None, names: list[str], value: Any, indent: int) -> str:
    """Add ``names[0]: {names[1]: ... value}`` after the last entry of a group (None: an empty document)."""
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
    while isinstance(node, CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(node, MappingNode) else last
    return node


def _line_end(text: str, at: int) -> int:
    """Return the index after the line containing ``at``; block values may already end at the start of the next."""
    if at > 0 and text[at - 1] == "\n":
        return at
    return text.find("\n", at) + 1 or len(text)


def _replace(path: Path, text: str) -> None:
    path = path.resolve()  # keep symbolic links
    with publish_file(path) as new:
        with new.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
        if path.exists():
            shutil.copymode(path, new)
