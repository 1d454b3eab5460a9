"""Document the settings: what ``cse settings`` prints, and a commented ``params.yaml``.

Rewrite the file with ``python -m cse.settings.document``.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import click
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from cse.settings.data import SourceSettings
from cse.settings.group import SettingsGroup
from cse.settings.load import PARAMS_FILE, load_settings, walk_keys
from cse.settings.tree import Settings

# What ``params.yaml`` always has: what people change, and every key that ``dvc.yaml`` names.
COMMON = (
    *("data.source", "data.view", "data.train_path", "data.dev_path", "data.evaluation_path", "data.cxc_path"),
    *("data.task_path", "data.columns", "data.hold_out", "data.max_rows", "data.more"),
    *("mine.neighbours", "mine.negatives", "backbone.name", "prompt.kind", "prompt.length", "prompt.init_checkpoint"),
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


@click.command()
@click.argument("params", type=click.Path(path_type=Path), default=PARAMS_FILE)
def main(params: Path) -> None:
    """Rewrite the settings file PARAMS with its values and comments."""
    params.write_text(params_text(load_settings(params, any_view=True)), encoding="utf-8")


if __name__ == "__main__":
    main()
