"""Read ``params.yaml`` into the tree of settings; every mistake becomes one line that names the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cse.errors import CseError, nearest
from cse.settings.tree import Settings

PARAMS_FILE = Path("params.yaml")


def load_settings(path: Path | str = PARAMS_FILE, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read and check a settings file.

    Args:
        path: a YAML file; keys that it leaves out keep their defaults.
        overrides: values by dotted key (``{"train.epochs": 2}``) that win over the file.

    Raises:
        CseError: missing file, broken YAML, unknown key, wrong type or impossible combination; one line each.
    """
    path = Path(path)
    try:
        tree = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CseError(f"{path}: no such file; `cse preset use NAME` writes one") from None
    except UnicodeDecodeError as error:
        raise CseError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise CseError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise CseError(f"{path}: expected groups of settings (data:, train:, ...), found {type(tree).__name__}")
    for key, value in (overrides or {}).items():
        set_key(tree, key, value)
    return check_settings(tree, where=str(path))


def check_settings(tree: Mapping[str, Any], where: str) -> Settings:
    """Turn a plain tree into ``Settings``; raises ``CseError`` with ``where`` and the key in one line."""
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        lines = [_one_line(dict(problem)) for problem in error.errors()]
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        raise CseError(f"{where}: {lines[0]}{more}") from None


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested mapping in place, making the groups on the way."""
    *groups, last = key.split(".")
    for group in groups:
        child = tree.setdefault(group, {})
        if not isinstance(child, dict):
            raise CseError(f"{key}: {group!r} is a value, not a group")
        tree = child
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested mappings into one with dotted keys, in order."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def walk_keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of the tree with its pydantic field, in the order of definition."""
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
    return f"{key}: {message[0].lower()}{message[1:]}, found {problem['input']!r}"
