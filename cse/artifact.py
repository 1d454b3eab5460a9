"""An artifact: a folder that says what it is and what belongs to it, so that whoever opens it knows that it is whole.

Its manifest lies beside its files, no hidden file, so that it travels with them: JSON with the ``kind``, the SHA-256 of
each other file in ``files`` (empty: the file may change), and a ``seal``, the hash of the manifest itself. What a
checkpoint, a bundle or a record says of itself stands there too. The seal detects damage and edits; it is no signature.
How artifacts are written: ``cse.outputs``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from cse.errors import CseError

Fields = TypeVar("Fields")

SEAL = "seal"
_NAME = re.compile(r"[\w-][\w.-]{0,99}(/[\w-][\w.-]{0,99}){0,2}")  # a file in the folder, or up to two folders below it
_HASH = re.compile(r"[0-9a-f]{64}|")
_NO_MANIFEST = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError), *(ValueError, KeyError, TypeError, RecursionError),
)  # fmt: skip


class Kind(StrEnum):
    """The kind of a published folder."""

    PREPARED_DATA = "prepared data"
    CHECKPOINT = "checkpoint"
    PLOTS = "plots"
    RECORD = "record"
    RECORDS = "records"
    BUNDLE = "bundle"
    BANK = "bank"
    REPORT = "report"
    SENTENCE_TRANSFORMERS = "sentence-transformers model"
    PEFT = "peft adapter"
    TRANSFORMERS_JS = "transformers.js model"
    JUDGED = "judged queries"
    INDEX = "index"

    @property
    def manifest(self) -> str:
        """Name of the manifest in a folder of this kind."""
        return _MANIFESTS.get(self, "manifest.json")


_MANIFESTS = {
    Kind.CHECKPOINT: "checkpoint.json",
    Kind.BUNDLE: "bundle.json",
    Kind.BANK: "bundle.json",
    Kind.RECORD: "record.json",
}


# ---- hashes and seals ---------------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 of JSON facts, regardless of their order.

    It leaves out their seal, and the name of a ``backbone``: where it lies, which users may edit once it has moved.
    """
    rest = {name: value for name, value in facts.items() if name != SEAL}
    if isinstance(rest.get("backbone"), dict):
        rest["backbone"] = {name: value for name, value in rest["backbone"].items() if name != "name"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("ascii")).hexdigest()


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with their seal."""
    return {**facts, SEAL: digest(facts)}


def check_seal(facts: Mapping[str, Any], path: Path, again: str) -> None:
    """Refuse facts that were modified after sealing; ``again`` says how to mend it, here and below."""
    try:
        whole = facts.get(SEAL) == digest(facts)
    except RecursionError:
        whole = False
    if not whole:
        raise CseError(f"{path}: changed since it was written (its seal does not match its contents); {again}")


def read_value(path: Path, again: str) -> Any:
    """Read a JSON file that may be damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise CseError(f"{path}: not valid JSON; {again}") from None


def read_object(path: Path, again: str) -> dict[str, Any]:
    """Read a JSON object."""
    tree = read_value(path, again)
    if not isinstance(tree, dict):
        raise CseError(f"{path}: expected an object, found {type(tree).__name__}; {again}")
    return tree


def read_sealed(path: Path, again: str) -> dict[str, Any]:
    """Read a sealed JSON object, as far as a seal can tell as it was written."""
    tree = read_object(path, again)
    check_seal(tree, path, again)
    return tree


def write_sealed(path: Path, tree: Mapping[str, Any]) -> None:
    """Write a JSON object that ``read_sealed`` reads back only if nothing of it has changed."""
    facts = sealed(json.loads(json.dumps(tree)))  # keys as text, as they come back
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="ascii")


# ---- manifests ----------------------------------------------------------------------------------------------------


def hash_files(folder: Path, kind: Kind) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder but its manifest, by name."""
    return {name: sha256(folder / name) for name in sorted(files_in(folder) - {kind.manifest})}


def write_manifest(folder: Path, kind: Kind, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a folder, with the hashes of its files unless the facts have some."""
    files = facts.get("files") or hash_files(folder, kind)
    write_sealed(folder / kind.manifest, {"kind": kind, **facts, "files": files})


def open_manifest(folder: Path, *kinds: Kind, version: int, needed: Iterable[str] = (), again: str) -> dict[str, Any]:
    """Read the manifest of a folder of one of some kinds, which name theirs alike; of the files, those with a hash.

    Args:
        version: value of ``format`` that the caller reads.
    """
    path = folder / kinds[0].manifest
    facts = read_object(path, again)
    if type(facts.get("format")) is not int or facts["format"] != version:
        raise CseError(f"{path}: format {short(facts.get('format'))}, this version reads {version}; {again}")
    check_seal(facts, path, again)
    if facts.get("kind") not in kinds:
        raise CseError(f"{path}: kind is {short(facts.get('kind'))}, not {' or '.join(kinds)}; {again}")
    check_entries(facts.get("files"), path, needed, again)
    return facts | {"files": {name: found for name, found in facts["files"].items() if found}}


def check_entries(files: Any, manifest: Path, needed: Iterable[str], again: str) -> None:
    """Refuse the files of a manifest that this project would not have listed so, and one that lacks a file."""
    if not isinstance(files, dict):
        raise CseError(f"{manifest}: files is not a table of names; {again}")
    for name, entry in files.items():
        if not (_NAME.fullmatch(name) and isinstance(entry, str) and _HASH.fullmatch(entry)):
            raise CseError(f"{manifest}: files entry {name[:40]!r} is not valid; {again}")
    for name in needed:
        if not files.get(name):
            raise CseError(f"{manifest}: files does not list {name}; {again}")


def check_files(folder: Path, files: Mapping[str, str], manifest: str, again: str) -> None:
    """Compare every listed file with its hash."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise CseError(f"{path}: missing, though {manifest} lists it; {again}")
        if sha256(path) != expected:
            raise CseError(f"{path}: does not match {manifest} (SHA-256 differs); {again}")


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
        if isinstance(wanted, type) and dataclasses.is_dataclass(wanted) and isinstance(value, dict):
            value = fields_of(wanted, value, manifest, again)
        if not _is(value, wanted):
            kind = get_origin(wanted) or wanted
            should, found = (wanted, short(value)) if type(value) is kind else (kind.__name__, type(value).__name__)
            raise CseError(f"{manifest}: key {key.name!r} should be {should}, found {found}; {again}")
        values[key.name] = value
    return kind(**values)


_hints = functools.cache(get_type_hints)


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


def listed(folder: Path) -> tuple[Kind | None, set[str]]:
    """Return the kind of a published folder, None if it is not ours, and the files of its manifest, it included."""
    for name in dict.fromkeys(kind.manifest for kind in Kind):
        with contextlib.suppress(*_NO_MANIFEST):
            facts: Any = json.loads((folder / name).read_text(encoding="utf-8"))
            if (kind := Kind(facts["kind"])).manifest == name:
                return kind, {name, *dict(facts["files"])}
    return None, set()


def is_whole(path: Path) -> bool:
    """Return whether a file is there, or a published folder with all its files."""
    kind, files = listed(path)
    return path.is_file() or (kind is not None and all((path / name).is_file() for name in files))


def files_in(folder: Path) -> set[str]:
    """Return the relative paths of everything in a folder but its folders; do not follow links."""
    found = set()
    for parent, folders, files in os.walk(folder, onerror=_raise) if folder.is_dir() else ():
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found |= {Path(parent, name).relative_to(folder).as_posix() for name in (*files, *links)}
    return found


def _raise(error: OSError) -> None:
    raise error
