"""Read ``params.yaml`` into the settings tree and report each mistake as one line naming the key."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cse.errors import CseError, nearest
from cse.settings.tree import ANY_VIEW, Settings

PARAMS_FILE = Path("params.yaml")
_MOST_BYTES = 1 << 18  # of a settings file; the default has 14 kB
_LARGEST = 1 << 63
_SHOWN = 100  # characters of a wrong value in an error


def load_settings(
    path: Path | str = PARAMS_FILE, overrides: Mapping[str, Any] | None = None, *, any_view: bool = False
) -> Settings:
    """Read and check a settings file; missing keys take their defaults.

    Args:
        overrides: values by dotted key (``{"train.epochs": 2}``) that take precedence over the file.
        any_view: accept an objective that does not fit ``data.view``, for commands that prepare rows but do not train.
    """
    path = Path(path)
    tree = parse_tree(read_text(path), str(path))
    for key, value in (overrides or {}).items():
        check_known(key)
        set_key(tree, key, value)
    return check_settings(tree, where=str(path), any_view=any_view)


def check_known(key: str) -> None:
    """Refuse the key of an override that is no setting, group of settings or part of one: the file is not to blame."""
    known = [name for name, _ in walk_keys()]
    if not any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in known):
        raise CseError(f"{key}: unknown key{nearest(key, known)}")


def read_text(path: Path) -> str:
    """Return the text of a settings file with its line endings unchanged."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise CseError(f"{path}: no such file; `cse preset use NAME` writes one") from None
    if not stat.S_ISREG(facts.st_mode):
        raise CseError(f"{path}: not a regular file; name a settings file")
    if facts.st_size > _MOST_BYTES:
        raise CseError(f"{path}: {facts.st_size:,} bytes, a settings file has at most {_MOST_BYTES:,}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise CseError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


@cache
def packaged(name: str) -> Any:
    """Return the value of a YAML file that lies beside this module."""
    return YAML(typ="safe", pure=True).load(files("cse.settings").joinpath(name).read_text("utf-8"))


def parse_tree(text: str, where: str) -> dict[str, Any]:
    """Return the groups of a settings file."""
    tree = parse_yaml(text, where)
    if not isinstance(tree, dict | None):
        raise CseError(f"{where}: expected groups of settings (data:, train:, ...), found {type(tree).__name__}")
    return tree or {}


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML document."""
    yaml = YAML(typ="safe", pure=True)
    try:
        value = yaml.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise CseError(f"{where}:{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # constructors raise anything on invalid values
        raise CseError(f"{where}: not valid YAML: {_shortened(str(error).splitlines()[0])}") from None
    _check_numbers(value, where)
    return value


def _check_numbers(tree: Any, where: str) -> None:
    seen: set[int] = set()  # an alias may name a value again, or the value it stands in
    todo = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise CseError(f"{where}: {_shortened(hex(value))} does not fit in 64 bits; use a smaller number")
        if isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            todo += [*value, *value.values()] if isinstance(value, dict) else value


def check_settings(tree: Mapping[str, Any], where: str, *, any_view: bool = False) -> Settings:
    """Return a plain tree as ``Settings``; raise a one-line ``CseError`` naming ``where`` and the key."""
    try:
        return Settings.model_validate(tree, context={ANY_VIEW: any_view})
    except ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        raise CseError(f"{where}: {_one_line(dict(first))}{more}") from None


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested mapping in place, creating missing groups."""
    *groups, last = key.split(".")
    for group in groups:
        child = tree.setdefault(group, {})
        if not isinstance(child, dict):
            raise CseError(f"{key}: {group!r} is a value, not a group")
        tree = child
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one with dotted keys, in order; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
        )
    return flat


def walk_keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of the settings tree with its pydantic field, in definition order."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from walk_keys(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _one_line(problem: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = [name for name, _ in walk_keys()] + list(Settings.model_fields)
        return f"{key}: unknown key{nearest(key, known)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    return f"{key}: {message[0].lower()}{message[1:]}, found {_shortened(repr(problem['input']))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
