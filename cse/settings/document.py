"""Write the tree of settings down: as a Markdown table and as a complete, commented ``params.yaml``.

``python -m cse.settings.document --page docs/settings.md`` renews the page.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cse.settings.groups.group import LARGEST, Group
from cse.settings.load import load_settings
from cse.settings.tree import Settings

_WIDTH = 118
_INDENT = "  "
_KINDS = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_PLAIN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def settings_page() -> str:
    """Return ``docs/settings.md``: the introduction and the table."""
    return (
        "# Settings\n\n"
        "Every key of `params.yaml`; a key that the file leaves out has its default, an unknown key is an error.\n"
        f"Whole numbers go up to {LARGEST} where nothing less is said; texts are not blank.\n"
        "`python -m cse.settings.document --page docs/settings.md` writes this page, and a test compares it with the "
        "code.\n\n" + settings_table()
    )


def settings_table() -> str:
    """Return a Markdown table with one row per key: key, values, default, meaning."""
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for key, field, default in _leaves():
        cells = (f"`{key}`", describe_values(field), f"`{yaml_value(default)}`", field.description or "")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def params_text(settings: Settings | None = None) -> str:
    """Return a complete ``params.yaml``: every key with its value or default, under a comment that explains it."""
    lines = [
        "# Settings of every stage; docs/settings.md has the same as a table. `cse preset list` names whole systems."
    ]
    lines += _render_group(settings or Settings(), depth=0)
    return "\n".join(lines) + "\n"


def describe_values(field: FieldInfo) -> str:
    """Say in words which values a field takes, such as "whole number >= 1 or `null`"."""
    return " or ".join(_describe_type(field.annotation, field.metadata))


def yaml_value(value: Any) -> str:
    """Write a setting as YAML on one line.

    Floats keep a point (``1.0e-5``), so that readers of YAML 1.1 take them as numbers too.
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
    return str(value)


def _leaves(group: BaseModel | None = None, prefix: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
    group = group or Settings()
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        if isinstance(value, Group):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field, value


def _render_group(group: Group, depth: int) -> list[str]:
    lines: list[str] = []
    indent = _INDENT * depth
    for name, field in type(group).model_fields.items():
        value = getattr(group, name)
        if isinstance(value, Group):
            lines += [""] if depth == 0 else []
            lines += _comment((type(value).__doc__ or "").splitlines()[0].replace("`", ""), indent)
            lines += [f"{indent}{name}:", *_render_group(value, depth + 1)]
        else:
            lines += _comment(_with_choices(field), indent)
            lines.append(f"{indent}{name}: {yaml_value(value)}")
    return lines


def _with_choices(field: FieldInfo) -> str:
    """Put the choices of a ``Literal`` behind a description that does not name them all."""
    text = (field.description or "").replace("`", "")
    choices = [str(choice) for choice in _choices(field.annotation)]
    if all(choice in text for choice in choices):
        return text
    return f"{text} One of {', '.join(choices)}."


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _describe_type(annotation: Any, metadata: list[Any]) -> list[str]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [item for extra in parts[1:] for item in getattr(extra, "metadata", [extra])]
        return _describe_type(parts[0], inner + metadata)
    if origin in (Union, UnionType):
        return [text for part in parts for text in _describe_type(part, metadata)]
    if origin is Literal:
        return [", ".join(f"`{choice}`" for choice in parts)]
    if origin is list:
        if get_origin(parts[0]) is Literal:
            return [f"list of {', '.join(_describe_type(parts[0], []))}"]
        return [f"list of {_KINDS[parts[0]]}s"]
    if annotation is NoneType:
        return ["`null`"]
    bounds = [
        f"{sign} {float(getattr(item, name)):.12g}"
        for name, sign in _BOUNDS.items()
        for item in metadata
        if hasattr(item, name)
    ]
    return [f"{_KINDS[annotation]} {', '.join(bounds)}".strip()]


@click.command()
@click.option("--page", type=click.Path(path_type=Path), help="Write docs/settings.md here.")
@click.option("--params", type=click.Path(path_type=Path), help="Rewrite this settings file: its values, all keys.")
def main(page: Path | None, params: Path | None) -> None:
    """Write what the settings classes say to the files that repeat it."""
    if page is not None:
        page.write_text(settings_page(), encoding="utf-8")
    if params is not None:
        params.write_text(params_text(load_settings(params)), encoding="utf-8")


if __name__ == "__main__":
    main()
