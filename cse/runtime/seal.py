"""Integrity of a folder: its manifest has the hash of every file, and a seal over its own contents.

Checkpoints and bundles both use it. The seal detects damage and manual edits; it is not a signature.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cse.errors import CseError

Fields = TypeVar("Fields")

SEAL = "seal"
_NAME = re.compile(r"[\w-][\w.-]{0,99}(/[\w-][\w.-]{0,99}){0,2}")  # a file in the folder, or up to two folders below it
_HASH = re.compile(r"[0-9a-f]{64}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_files(folder: Path | str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the manifest entry of the named files in a folder: SHA-256 and size in bytes of each."""
    paths = {name: Path(folder) / name for name in names}
    return {name: {"sha256": sha256(path), "bytes": path.stat().st_size} for name, path in sorted(paths.items())}


def check_entries(files: Any, manifest: Path, needed: Iterable[str], again: str) -> None:
    """Refuse a manifest entry that ``describe_files`` would not have written."""
    if not isinstance(files, dict):
        raise CseError(f"{manifest}: files is not a table of names; {again}")
    for name, entry in files.items():
        hashed = isinstance(entry, dict) and entry.keys() == {"sha256", "bytes"}
        if not (
            _NAME.fullmatch(name)
            and hashed
            and isinstance(entry["sha256"], str)
            and _HASH.fullmatch(entry["sha256"])
            and type(entry["bytes"]) is int
            and entry["bytes"] >= 0
        ):
            raise CseError(f"{manifest}: files entry {name[:40]!r} is not valid; {again}")
    for name in needed:
        if name not in files:
            raise CseError(f"{manifest}: files does not list {name}; {again}")


def check_files(folder: Path, files: Mapping[str, Any], manifest: str, again: str) -> None:
    """Compare every listed file with its size and hash; ``again`` says how to mend what differs, here and below."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise CseError(f"{path}: missing, though {manifest} lists it; {again}")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CseError(f"{path}: {size} bytes, {manifest} says {entry['bytes']}; {again}")
        if sha256(path) != entry["sha256"]:
            raise CseError(f"{path}: does not match {manifest} (SHA-256 differs); {again}")


def digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON facts, regardless of their order and without their seal."""
    rest = {name: value for name, value in facts.items() if name != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with their seal."""
    return {**facts, SEAL: digest(facts)}


def check_seal(facts: Mapping[str, Any], manifest: Path, again: str) -> None:
    """Refuse facts that were modified after sealing."""
    try:
        whole = facts.get(SEAL) == digest(facts)
    except RecursionError:
        whole = False
    if not whole:
        raise CseError(f"{manifest}: changed since it was written (its seal does not match its contents); {again}")


def read_value(path: Path, again: str) -> Any:
    """Read a JSON file that may be damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise CseError(f"{path}: not valid JSON; {again}") from None


def read_object(path: Path, again: str) -> dict[str, Any]:
    """Read a manifest."""
    tree = read_value(path, again)
    if not isinstance(tree, dict):
        raise CseError(f"{path}: expected an object, found {type(tree).__name__}; {again}")
    return tree


def read_sealed(path: Path, again: str) -> dict[str, Any]:
    """Read a sealed JSON object, as far as a seal can tell as it was written."""
    tree = read_object(path, again)
    check_seal(tree, path, again)
    return tree


_hints = functools.cache(get_type_hints)


def fields_of(kind: type[Fields], tree: Mapping[str, Any], manifest: Path, again: str) -> Fields:
    """Return a dataclass filled from a manifest, ignoring unknown keys."""
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {}
    for key in dataclasses.fields(kind):  # type: ignore[arg-type]
        if key.name not in tree:
            if key.default is key.default_factory is dataclasses.MISSING:
                raise CseError(f"{manifest}: key {key.name!r} is missing; {again}")
            continue
        value, wanted = tree[key.name], hints[key.name]
        if not _is(value, wanted):
            kind = get_origin(wanted) or wanted
            should, found = (wanted, short(value)) if type(value) is kind else (kind.__name__, type(value).__name__)
            raise CseError(f"{manifest}: key {key.name!r} should be {should}, found {found}; {again}")
        values[key.name] = value
    return kind(**values)


def _is(value: object, wanted: Any) -> bool:
    """Return whether a value is of a plain JSON type, such as ``dict[str, int]``, all the way down."""
    if wanted is Any or type(value) is not (get_origin(wanted) or wanted):
        return wanted is Any
    inside = get_args(wanted)[-1:]
    items = value.values() if isinstance(value, dict) else value
    return not inside or all(_is(item, inside[0]) for item in items)  # type: ignore[attr-defined]


def check_limits(values: Mapping[str, int], limits: Mapping[str, tuple[int, int]], manifest: Path, again: str) -> None:
    """Refuse implausible numbers of a manifest."""
    for key, (lowest, highest) in limits.items():
        if not lowest <= values[key] <= highest:
            raise CseError(f"{manifest}: {key} is {short(values[key])}, not between {lowest} and {highest}; {again}")


def short(value: object) -> str:
    """Return a value's ``repr``, cut at 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
