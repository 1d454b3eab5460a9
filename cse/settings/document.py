"""Settings as text: what ``cse settings`` prints, a commented ``params.yaml``, and changes of values in such a file.

Rewrite the file with ``python -m cse.settings.document``. A change keeps comments, order, layout and all other keys:
dumping the parsed document would move comments, so the text is edited value by value.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import click
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from cse.errors import CseError
from cse.outputs import publish_file
from cse.settings.data import SourceSettings
from cse.settings.group import SettingsGroup
from cse.settings.load import (
    PARAMS_FILE,
    Settings,
    check_settings,
    flatten,
    load_settings,
    parse_tree,
    read_text,
    set_key,
    walk_keys,
)

# What ``params.yaml`` always has: what people change, and every key that ``dvc.yaml`` names.
COMMON = (
    *("data.source", "data.view", "data.train_path", "data.dev_path", "data.evaluation_path", "data.cxc_path"),
    *("data.task_path", "data.columns", "data.hold_out", "data.max_rows", "data.more"),
    *("mine.neighbours", "backbone.name", "prompt.kind", "prompt.length", "prompt.init_checkpoint"),
    *("pooler.kind", "post.kind", "objective.nt_xent.temperature", "objective.energy_hinge.weight"),
    *("objective.energy_hinge.margin", "objective.replaced_tokens.generator_folder"),
    *("objective.distillation.teacher_folder", "train.parameters", "train.learning_rate", "train.batch_size"),
    *("train.epochs", "train.max_length", "train.roles", "train.device", "train.eval_every", "train.seed"),
    *("evaluation.measures", "export.precision", "tune.trials", "bank.domains"),
)
_WIDTH = 118
_INDENT = "  "
_KINDS = {"string": "text", "boolean": "`true`, `false`", "null": "`null`", "object": "table"}
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def params_text(settings: Settings | None = None) -> str:
    """Return a ``params.yaml`` with comments: every group, its common keys, and what differs from the defaults."""
    lines = [
        "# The settings that people change. `cse settings` lists all; add any under its group.",
        "# Leave in what is here: dvc.yaml names it. Settings of published systems: `cse preset list`.",
    ]
    lines += _render_group(settings or Settings(), depth=0)
    return "\n".join(lines) + "\n"


def describe_values(field: FieldInfo) -> str:
    """Return the values a field takes in words, such as "integer >= 1, `null`"."""
    return _in_words(json_schema(field))


def yaml_value(value: Any) -> str:
    """Return a setting as one line of YAML.

    Floats keep their decimal point (``1.0e-5``), so that YAML 1.1 parsers also read them as numbers.
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        digits, _, exponent = repr(value).partition("e")
        digits += "" if "." in digits else ".0"
        return f"{digits}e{int(exponent):+d}" if exponent else digits
    if isinstance(value, str):
        plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in _YAML_WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(yaml_value(item) for item in value) + "]"
    if isinstance(value, SettingsGroup):
        value = value.model_dump()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{yaml_value(key)}: {yaml_value(item)}" for key, item in value.items()) + "}"
    return str(value)


@cache
def meanings(group: type[SettingsGroup]) -> dict[str, str]:
    """Return the text below each setting of a group as one line; read here alone, since it would slow every start."""
    found = {}
    for kind in reversed(group.__mro__[: group.__mro__.index(SettingsGroup)]):
        (definition,) = ast.parse(inspect.getsource(kind)).body
        for setting, text in pairwise(cast("ast.ClassDef", definition).body):
            match setting, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[name] = " ".join(words.split())
    return found


class Leaf(NamedTuple):
    """A setting by its dotted key, with its value and its meaning."""

    key: str
    field: FieldInfo
    value: Any
    meaning: str


def leaves(settings: Settings | None = None) -> Iterator[Leaf]:
    """Yield every setting, and what an entry of ``data.more`` has (``data.more[].name``)."""
    settings = settings or Settings()
    for key, field in walk_keys():
        place, _, name = key.rpartition(".")
        group: SettingsGroup = attrgetter(place)(settings)
        yield Leaf(key, field, getattr(group, name), meanings(type(group))[name])
        if key == "data.more":
            for name, own in SourceSettings.model_fields.items():
                yield Leaf(f"{key}[].{name}", own, own.default, meanings(SourceSettings)[name])


def _render_group(group: SettingsGroup, depth: int, prefix: str = "") -> list[str]:
    lines: list[str] = []
    indent = _INDENT * depth
    for name, field in type(group).model_fields.items():
        value, key = getattr(group, name), f"{prefix}{name}"
        if isinstance(value, SettingsGroup):
            inner = _render_group(value, depth + 1, f"{key}.")
            if depth > 0 and not inner:
                continue
            lines += [""] if depth == 0 else []
            about = (type(value).__doc__ or "").splitlines()[0]
            lines += [*_explained(f"{indent}{name}:{'' if inner else ' {}'}", about), *inner]
        elif key in COMMON or value != field.get_default(call_default_factory=True):
            about = _with_choices(field, meanings(type(group))[name])
            if isinstance(value, dict) and value:
                lines += _explained(f"{indent}{name}:", about)
                lines += [f"{indent}{_INDENT}{yaml_value(key)}: {yaml_value(item)}" for key, item in value.items()]
            else:
                lines += _explained(f"{indent}{name}: {yaml_value(value)}", about)
    return lines


def _with_choices(field: FieldInfo, text: str) -> str:
    """Append the choices of a ``Literal`` to the meaning unless it names them all."""
    choices = [str(choice) for choice in _choices(json_schema(field))]
    if all(choice in text for choice in choices):
        return text
    return f"{text} One of {', '.join(choices)}."


def _explained(entry: str, text: str) -> list[str]:
    """Return a line of YAML with its comment, behind it where it fits."""
    text = text.replace("`", "")
    if len(entry) + len(text) + 4 <= _WIDTH:
        return [f"{entry}  # {text}"]
    indent = entry[: len(entry) - len(entry.lstrip())]
    return [*textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "), entry]


def json_schema(field: FieldInfo) -> dict[str, Any]:
    """Return the JSON schema of the values that a field takes."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(kind).json_schema()


def _choices(schema: dict[str, Any]) -> list[Any]:
    within = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    return [*schema.get("enum", ()), *(choice for part in within for choice in _choices(part))]


def _in_words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return ", ".join(map(_in_words, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "items" in schema:
        return f"list of: {_in_words(schema['items'])}"
    kind = schema.get("type", "object")
    bounds = ", ".join(f"{sign} {schema[name]:.12g}" for name, sign in _BOUNDS.items() if name in schema)
    return f"{_KINDS.get(kind, kind)} {bounds}".strip()


# ---- editing in place ---------------------------------------------------------------------------------------------


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
    written, real = _edit(text, {key: value for key, (_, value) in changed.items()}, tree, path), path.resolve()
    with publish_file(real) as new:  # symbolic links and permissions stay
        new.write_text(written, encoding="utf-8", newline="")
        if real.exists():
            shutil.copymode(real, new)
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


@click.command()
@click.argument("params", type=click.Path(path_type=Path), default=PARAMS_FILE)
def main(params: Path) -> None:
    """Rewrite the settings file PARAMS with its values and comments."""
    params.write_text(params_text(load_settings(params, any_view=True)), encoding="utf-8")


if __name__ == "__main__":
    main()
