"""The bundle folder: ``bundle.json`` says what is in it, and every other file is checked against it.

A bundle holds ``model.onnx`` (and ``model.onnx.data`` where weights are kept outside), ``tokenizer.json`` and
``bundle.json``. The manifest is written last, so a folder without it is not finished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from cse.errors import CseError

FORMAT = 1
MANIFEST = "bundle.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Bundle:
    """What ``bundle.json`` says.

    Attributes:
        format: version of this layout.
        dimension: width of an embedding.
        pooler: how token outputs become one vector (``cls``, ``mean``, ...).
        normalize: whether embeddings have unit length unless the caller says otherwise.
        max_length: most tokens of a sentence, special tokens included.
        pad_id: token id that fills short rows.
        files: SHA-256 (hex) and size in bytes of each other file: ``{name: {"sha256": ..., "bytes": ...}}``.
        prompt: summary of the prompts (kind, length, ...).
        backbone: id, revision and SHA-256 of the weights under the prompts.
        versions: of the packages that wrote the bundle.
        metrics: scores of the model, by task.
        parity: largest difference to torch, and where it was measured.
    """

    format: int
    dimension: int
    pooler: str
    normalize: bool
    max_length: int
    pad_id: int
    files: dict[str, Any]
    prompt: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path | str) -> None:
        """Write ``bundle.json`` into the folder."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=True)
        (Path(folder) / MANIFEST).write_text(text + "\n", encoding="ascii")


def describe_files(folder: Path | str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the manifest's ``files`` entry for the named files of a folder."""
    paths = {name: Path(folder) / name for name in names}
    return {name: {"sha256": sha256(path), "bytes": path.stat().st_size} for name, path in sorted(paths.items())}


def sha256(path: Path) -> str:
    """Return a file's SHA-256 as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path | str) -> Bundle:
    """Read ``bundle.json``; keys that it does not know are left out.

    Raises:
        CseError: no such folder or manifest, broken JSON, a newer format, or a key missing or of the wrong type.
    """
    path = Path(folder) / MANIFEST
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CseError(f"{folder}: no bundle here ({MANIFEST} is missing); `cse export` writes one") from None
    except ValueError:
        raise CseError(f"{path}: not valid JSON; export the bundle again or copy it whole") from None
    if not isinstance(tree, dict):
        raise CseError(f"{path}: expected an object, found {type(tree).__name__}; export the bundle again")
    if tree.get("format") != FORMAT:
        raise CseError(
            f"{path}: format {tree.get('format')!r}, this version reads {FORMAT}; export the bundle again or "
            "install the version of cse that wrote it"
        )
    hints = get_type_hints(Bundle)
    values = {}
    for key in dataclasses.fields(Bundle):
        wanted = getattr(hints[key.name], "__origin__", hints[key.name])
        if key.name not in tree:
            if key.default_factory is dataclasses.MISSING:
                raise CseError(f"{path}: key {key.name!r} is missing; export the bundle again")
            continue
        if type(tree[key.name]) is not wanted:
            raise CseError(
                f"{path}: key {key.name!r} should be {wanted.__name__}, found {type(tree[key.name]).__name__}; "
                "export the bundle again"
            )
        values[key.name] = tree[key.name]
    for name in (MODEL, TOKENIZER):
        if name not in values["files"]:
            raise CseError(f"{path}: files does not list {name}; export the bundle again")
    return Bundle(**values)


def verify(folder: Path | str) -> Bundle:
    """Check size and SHA-256 of every file that the manifest lists, and return the manifest.

    Raises:
        CseError: what ``read_manifest`` raises, or a file that is missing, cut short, or changed; it is named.
    """
    bundle = read_manifest(folder)
    for name, entry in bundle.files.items():
        path = Path(folder) / name
        if Path(name).name != name or not isinstance(entry, dict) or not {"sha256", "bytes"} <= entry.keys():
            raise CseError(f"{Path(folder) / MANIFEST}: files entry {name!r} is not valid; export the bundle again")
        if not path.is_file():
            raise CseError(f"{path}: missing, though {MANIFEST} lists it; copy the whole bundle again")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CseError(f"{path}: {size} bytes, {MANIFEST} says {entry['bytes']}; copy the whole bundle again")
        if sha256(path) != entry["sha256"]:
            raise CseError(f"{path}: changed since the export (SHA-256 differs); export or copy the bundle again")
    return bundle
