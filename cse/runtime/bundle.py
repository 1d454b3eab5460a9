"""The bundle folder: ``bundle.json`` says what is in it, and every other file is checked against it.

A bundle holds ``model.onnx`` (and ``model.onnx.data`` where weights are kept outside), ``tokenizer.json`` and
``bundle.json``. The manifest is written last, so a folder without it is not finished.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from cse.errors import CseError
from cse.runtime.seal import check_entries, check_files, check_seal, describe_files, read_object, sealed, sha256

__all__ = ["FORMAT", "MANIFEST", "MODEL", "TOKENIZER", "Bundle", "describe_files", "read_manifest", "sha256", "verify"]

FORMAT = 2
UNSEALED = 1  # the format before manifests had a seal
MANIFEST = "bundle.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
SHORTEST, LONGEST = 3, 100_000  # tokens of the longest sentence: begin, one token, end; word vectors take most
_WIDEST = 1_000_000
_EXPORT, _COPY = "export the bundle again", "copy the whole bundle again"


@dataclass(frozen=True)
class Bundle:
    """What ``bundle.json`` says; beside it stands a seal over all of it.

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
        checkpoint: identity of the checkpoint that it was made from; empty for a bare backbone.
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
    checkpoint: str = ""

    def write(self, folder: Path | str) -> None:
        """Write ``bundle.json`` into the folder."""
        text = json.dumps(sealed(dataclasses.asdict(self)), indent=2, ensure_ascii=True)
        (Path(folder) / MANIFEST).write_text(text + "\n", encoding="ascii")


def read_manifest(folder: Path | str) -> Bundle:
    """Read ``bundle.json``; keys that it does not know are left out.

    Raises:
        CseError: no such folder or manifest, broken JSON, a newer format, a manifest that was changed, or a key that is
            missing, of the wrong type or not plausible.
    """
    path = Path(folder) / MANIFEST
    try:
        tree = read_object(path, "export the bundle again or copy it whole")
    except (FileNotFoundError, NotADirectoryError):
        raise CseError(f"{folder}: no bundle here ({MANIFEST} is missing); `cse export` writes one") from None
    if type(tree.get("format")) is not int or tree["format"] not in (UNSEALED, FORMAT):
        raise CseError(
            f"{path}: format {_short(tree.get('format'))}, this version reads {FORMAT}; export the bundle again or "
            "install the version of cse that wrote it"
        )
    check_seal(tree, path, _EXPORT, needed=tree["format"] != UNSEALED)
    hints = get_type_hints(Bundle)
    values = {}
    for key in dataclasses.fields(Bundle):
        wanted = getattr(hints[key.name], "__origin__", hints[key.name])
        if key.name not in tree:
            if key.default is key.default_factory is dataclasses.MISSING:
                raise CseError(f"{path}: key {key.name!r} is missing; {_EXPORT}")
            continue
        if type(tree[key.name]) is not wanted:
            found = type(tree[key.name]).__name__
            raise CseError(f"{path}: key {key.name!r} should be {wanted.__name__}, found {found}; {_EXPORT}")
        values[key.name] = tree[key.name]
    bundle = Bundle(**values)
    _check_plausible(bundle, path)
    check_entries(bundle.files, path, (MODEL, TOKENIZER), _EXPORT)
    return bundle


def _check_plausible(bundle: Bundle, path: Path) -> None:
    limits = {"dimension": (1, _WIDEST), "max_length": (SHORTEST, LONGEST), "pad_id": (0, 2**31)}
    for key, (lowest, highest) in limits.items():
        value = getattr(bundle, key)
        if not lowest <= value <= highest:
            raise CseError(f"{path}: {key} is {_short(value)}, not between {lowest} and {highest}; {_EXPORT}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def verify(folder: Path | str) -> Bundle:
    """Check size and SHA-256 of every file that the manifest lists, and return the manifest.

    Raises:
        CseError: what ``read_manifest`` raises, or a file that is missing, cut short, or changed; it is named.
    """
    bundle = read_manifest(folder)
    check_files(Path(folder), bundle.files, MANIFEST, _COPY)
    return bundle
