"""The bundle folder, whose manifest ``bundle.json`` lists and verifies every other file.

A bundle contains ``model.onnx`` (and ``model.onnx.data`` if weights are stored separately), ``tokenizer.json``,
``bundle.json``; where there are labelled texts also ``classes.json``, the mean of each label's vectors. With a query
side it contains ``query.safetensors``, a domain as a bank has it (``cse.runtime.domain``). The manifest is written
last, so a folder without it is incomplete.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.errors import CseError
from cse.runtime.domain import SUFFIX, Domain, DomainFacts, Shape, read_domain
from cse.runtime.seal import (
    check_entries,
    check_files,
    check_limits,
    check_seal,
    describe_files,
    digest,
    fields_of,
    read_object,
    sealed,
    sha256,
    short,
)
from cse.runtime.uses import QUERY, SIDES

if TYPE_CHECKING:
    from cse.runtime.bank import BankManifest

__all__ = ["FORMAT", "MANIFEST", "MODEL", "TOKENIZER", "Bundle", "describe_files", "read_manifest", "sha256", "verify"]

FORMAT = 2
MANIFEST = "bundle.json"
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
QUERY_SIDE = f"query{SUFFIX}"
CLASSES = "classes.json"
SHORTEST, LONGEST = 3, 100_000  # limits of max_length: begin, one token, end; word vectors allow the most
WIDEST = 1_000_000
SIZES = ("layers", "heads", "head_size", "words", "positions")  # of the backbone of a bundle with a query side
_EXPORT, _COPY = "export the bundle again", "copy the whole bundle again"


@dataclass(frozen=True)
class Bundle:
    """Contents of ``bundle.json``, except the seal over them.

    Attributes:
        pooler: how token outputs become one vector (``cls``, ``mean``, ...).
        max_length: maximum tokens per sentence, special tokens included.
        files: SHA-256 (hex) and size in bytes of each other file: ``{name: {"sha256": ..., "bytes": ...}}``.
        backbone: id, revision and SHA-256 of the backbone's weights; with a query side also its ``SIZES``.
        parity: largest difference from torch, and where it was measured.
        checkpoint: identity of the exported checkpoint; empty for a bare backbone.
        precision: of weights and matrix products, ``fp32``, ``fp16`` or ``int8``.
        texts: task texts by role, which go before a text.
        widths: numbers of dimensions that its vectors may be cut to.
        side: ``both``, or ``query``: ``query.safetensors`` is for role ``query`` alone, and all else, with
            ``max_length``, is the bare backbone's.
        documents: identity of the document side, see ``documents_identity``; empty if training changed documents.
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
    precision: str = "fp32"
    texts: dict[str, Any] = field(default_factory=dict)
    widths: list[Any] = field(default_factory=list)
    side: str = "both"
    documents: str = ""

    def write(self, folder: Path | str) -> None:
        """Write ``bundle.json`` into the folder."""
        text = json.dumps(sealed(dataclasses.asdict(self)), indent=2, ensure_ascii=True)
        (Path(folder) / MANIFEST).write_text(text + "\n", encoding="ascii")


def read_manifest(folder: Path | str) -> Bundle:
    """Read ``bundle.json``, ignoring unknown keys."""
    path = Path(folder) / MANIFEST
    try:
        tree = read_object(path, "export the bundle again or copy it whole")
    except (FileNotFoundError, NotADirectoryError):
        inside = [found.parent.name for found in sorted(Path(folder).glob(f"*/{MANIFEST}"))[:1]]
        if (Path(folder) / "checkpoint.json").is_file():
            advice = f"it is a checkpoint: `cse export {folder} --out FOLDER` makes a bundle of it"
        else:
            advice = f"did you mean {Path(folder) / inside[0]}?" if inside else "`cse export` writes one"
        raise CseError(f"{folder}: no bundle here ({MANIFEST} is missing); {advice}") from None
    if type(tree.get("format")) is not int or tree["format"] != FORMAT:
        raise CseError(
            f"{path}: format {short(tree.get('format'))}, this version reads {FORMAT}; export the bundle again or "
            "install the version of cse that wrote it"
        )
    check_seal(tree, path, _EXPORT)
    bundle = fields_of(Bundle, tree, path, _EXPORT)
    _check_plausible(bundle, path)
    check_entries(bundle.files, path, (MODEL, TOKENIZER, *([QUERY_SIDE] if bundle.side == QUERY else [])), _EXPORT)
    return bundle


def read_query_side(folder: Path | str, bundle: Bundle) -> Domain | None:
    """Return the query side of a bundle, which ``verify`` checked; None if it has none."""
    if bundle.side != QUERY:
        return None
    path = Path(folder) / QUERY_SIDE
    try:
        return read_domain(path, _shape(bundle, Path(folder) / MANIFEST))
    except FileNotFoundError:
        raise CseError(f"{path}: missing, though {MANIFEST} lists it; {_COPY}") from None


def bare_of(query: Domain, bundle: Bundle) -> Domain:
    """Return the document side of a bundle as a domain: the backbone without its query side."""
    facts = DomainFacts(
        query.facts.format, "", query.facts.backbone, bundle.pooler, bundle.normalize, 0, bundle.max_length,
        query.facts.width, query.facts.words, {},
    )  # fmt: skip
    return query.without(facts)


def documents_identity(manifest: Bundle | BankManifest) -> str:
    """Return a hash of what makes the vectors of documents where they are the bare backbone's.

    Those of int8 depend on the texts that it was calibrated on too: on the graph itself.
    """
    facts = {key: getattr(manifest, key) for key in ("pooler", "max_length", "pad_id")}
    files = {"backbone": manifest.backbone.get("sha256"), "tokenizer": manifest.files[TOKENIZER]["sha256"]}
    precision = getattr(manifest, "precision", "fp32")
    if precision == "int8":
        files["graph"] = digest({name: manifest.files[name] for name in manifest.files if name.startswith(MODEL)})
    return digest(facts | files | {"precision": precision})


def kept_as(manifest: Bundle | BankManifest) -> str:
    """Return under which name vectors of documents are kept, as torch keeps them too (``cse.runtime.kept_vectors``).

    Empty if they are not the bare backbone's in float32.
    """
    bare = isinstance(manifest, Bundle) and manifest.documents and manifest.precision == "fp32"
    return f"{manifest.backbone.get('sha256')} {manifest.pooler} fp32" if bare else ""


def _shape(bundle: Bundle, path: Path) -> Shape:
    """Return what a query side must fit."""
    sizes: dict[str, Any] = {key: bundle.backbone.get(key) for key in SIZES}
    if not all(type(size) is int for size in sizes.values()):
        raise CseError(f"{path}: backbone lacks {', '.join(SIZES)}, which its query side must fit; {_EXPORT}")
    sha256 = str(bundle.backbone.get("sha256"))
    return Shape(sha256, **sizes, dimension=bundle.dimension, poolers=(bundle.pooler,))


def _check_plausible(bundle: Bundle, path: Path) -> None:
    limits = {"dimension": (1, WIDEST), "max_length": (SHORTEST, LONGEST), "pad_id": (0, 2**31)}
    check_limits({key: getattr(bundle, key) for key in limits}, limits, path, _EXPORT)
    if bundle.side not in SIDES:
        raise CseError(f"{path}: side is {short(bundle.side)}, not one of {', '.join(SIDES)}; {_EXPORT}")
    widths_fit = all(type(width) is int and 1 <= width <= bundle.dimension for width in bundle.widths)
    if not widths_fit or not all(isinstance(text, str) for text in bundle.texts.values()):
        raise CseError(f"{path}: texts or widths are not those of a model of {bundle.dimension} dimensions; {_EXPORT}")


def verify(folder: Path | str) -> Bundle:
    """Check the size and SHA-256 of every listed file and return the manifest."""
    bundle = read_manifest(folder)
    check_files(Path(folder), bundle.files, MANIFEST, _COPY)
    return bundle
