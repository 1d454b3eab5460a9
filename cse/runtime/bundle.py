"""The manifest ``bundle.json`` of a folder of ONNX models, which lists and verifies every file that never changes.

There is one form, of one model or of many: ``model.onnx`` (and ``model.onnx.data`` if weights are stored separately),
``tokenizer.json``, ``bundle.json``, a folder ``domains`` (``cse.runtime.domain``), and where there are labelled texts
their classifier (``cse.runtime.classifier``). A bundle of one model is a bank of one domain: its prompts are
constants of the graph, or, of a query side, in a file that the manifest lists. The domains of a bank come and go, so no
manifest lists them. The manifest is written last: a folder without it is incomplete.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cse.artifact import (
    Kind,
    check_entries,
    check_files,
    check_limits,
    digest,
    fields_of,
    open_manifest,
    short,
    write_manifest,
)
from cse.errors import CseError
from cse.runtime.domain import DOMAIN_FORMAT, SUFFIX, UPDATES, DomainFacts, Shape
from cse.runtime.uses import QUERY, SIDES

FORMAT = 4
MANIFEST = Kind.BUNDLE.manifest
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
DOMAINS = "domains"
SHORTEST, LONGEST = 3, 100_000  # limits of max_length: begin, one token, end; word vectors allow the most
WIDEST = 1_000_000
_SIZES = ("words", "layers", "heads", "head_size")
_OLD_BANK = "bank.json"  # of a bank, up to format 2


@dataclass(frozen=True)
class Manifest:
    """Contents of ``bundle.json``, except its kind and its seal.

    Attributes:
        pooler: how token outputs become one vector (``cls``, ``mean``, ...); of a bank, where no domain is named.
        max_length: maximum tokens per sentence, special tokens included, where no domain says less.
        files: SHA-256 (hex) of each other file by name; empty: hashed when it is written.
        only: name of the one domain; empty: a bank, whose domains are the files in ``domains``.
        backbone: id, revision and SHA-256 of the backbone's weights.
        parity: largest difference from torch, and where it was measured.
        checkpoint: identity of the exported checkpoint; empty for a bare backbone and a bank.
        precision: of weights and matrix products, ``fp32``, ``fp16`` or ``int8``.
        texts: task texts by role, which go before a text.
        widths: numbers of dimensions that vectors may be cut to.
        side: ``both``, or ``query``: the domain is for role ``query`` alone, and all else is the bare backbone's.
        documents: identity of the documents' vectors, see ``documents_identity``; empty if training changed them.
        words, layers, heads, head_size, positions: what a domain must fit, see ``Shape``; 0 where none is in a file.
        updates: widths of the inputs for updates of the layers, see ``Shape``; empty where the graph has none.
    """

    format: int
    dimension: int
    pooler: str
    normalize: bool
    max_length: int
    pad_id: int
    files: dict[str, str] = field(default_factory=dict)
    only: str = "model"
    prompt: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    precision: str = "fp32"
    texts: dict[str, str] = field(default_factory=dict)
    widths: list[int] = field(default_factory=list)
    side: str = "both"
    documents: str = ""
    words: int = 0
    layers: int = 0
    heads: int = 0
    head_size: int = 0
    positions: int = 0
    updates: dict[str, int] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        """What a domain must fit."""
        sizes = (self.layers, self.heads, self.head_size, self.dimension, self.words, self.positions)
        return Shape(str(self.backbone.get("sha256")), *sizes, self.updates, self.adapters)

    @property
    def constant(self) -> bool:
        """Whether the one domain is in the graph, and in no file of its own."""
        return bool(self.only) and self.side != QUERY

    def facts(self, **of_domain: Any) -> DomainFacts:
        """Return the facts of a domain that is in no file: the bare backbone, or the one in the graph."""
        sizes = (0, self.max_length, self.dimension, self.words)
        known = DomainFacts(DOMAIN_FORMAT, "", self.shape.backbone, self.pooler, self.normalize, *sizes, {})
        return dataclasses.replace(known, **of_domain)

    def write(self, folder: Path | str) -> None:
        """Write ``bundle.json`` into the folder."""
        write_manifest(Path(folder), Kind.BUNDLE if self.only else Kind.BANK, dataclasses.asdict(self))


def file_of(name: str) -> str:
    """Return where the domain of a name lies in a folder."""
    return f"{DOMAINS}/{name}{SUFFIX}"


def is_bundle(folder: Path | str) -> bool:
    """Return whether a folder claims to be a bundle or a bank, be it of an older format."""
    return any((Path(folder) / name).is_file() for name in (MANIFEST, _OLD_BANK))


def read_manifest(folder: Path | str) -> Manifest:
    """Read ``bundle.json``, ignoring unknown keys."""
    path, again = Path(folder) / MANIFEST, "export the bundle, or create the bank, again"
    try:
        tree = open_manifest(path.parent, Kind.BUNDLE, Kind.BANK, version=FORMAT, again=again)
    except (FileNotFoundError, NotADirectoryError):
        raise CseError(_no_manifest(path.parent)) from None
    manifest = fields_of(Manifest, tree, path, again)
    least = 0 if manifest.constant else 1
    limits = {"dimension": (1, WIDEST), "max_length": (SHORTEST, LONGEST), "pad_id": (0, 2**31)}
    limits |= dict.fromkeys(_SIZES, (least, WIDEST)) | {"positions": (least * manifest.max_length, 2**31)}
    check_limits({key: getattr(manifest, key) for key in limits}, limits, path, again)
    if manifest.side not in SIDES:
        raise CseError(f"{path}: side is {short(manifest.side)}, not one of {', '.join(SIDES)}; {again}")
    if not all(1 <= width <= manifest.dimension for width in manifest.widths):
        raise CseError(f"{path}: widths are not those of a model of {manifest.dimension} dimensions; {again}")
    if manifest.updates and tuple(manifest.updates) != UPDATES:
        raise CseError(f"{path}: updates should have {', '.join(UPDATES)}; {again}")
    check_limits(manifest.updates, dict.fromkeys(manifest.updates, (0, 2**31)), path, again)
    own = [file_of(manifest.only)] if manifest.only and not manifest.constant else []
    check_entries(manifest.files, path, (MODEL, TOKENIZER, *own), again)
    return manifest


def _no_manifest(folder: Path) -> str:
    if (folder / _OLD_BANK).is_file():
        return (
            f"{folder / _OLD_BANK}: a bank of an older format, this version reads {MANIFEST}; create the bank again "
            "and add its domains, or install the version of cse that wrote it"
        )
    inside = [found.parent for found in sorted(folder.glob(f"*/{MANIFEST}"))[:1]]
    if (folder / "checkpoint.json").is_file():
        advice = f"it is a checkpoint: `cse export {folder} --out FOLDER` makes a bundle of it"
    else:
        advice = f"did you mean {inside[0]}?" if inside else "`cse export` writes one, `cse bank create` a bank"
    return f"{folder}: no bundle here ({MANIFEST} is missing); {advice}"


def documents_identity(manifest: Manifest) -> str:
    """Return a hash of what makes the vectors of documents where they are the bare backbone's.

    Those of int8 depend on the texts that it was calibrated on too: on the graph itself.
    """
    facts = {key: getattr(manifest, key) for key in ("pooler", "max_length", "pad_id")}
    files = {"backbone": manifest.backbone.get("sha256"), "tokenizer": manifest.files[TOKENIZER]}
    if manifest.precision == "int8":
        files["graph"] = digest({name: manifest.files[name] for name in manifest.files if name.startswith(MODEL)})
    return digest(facts | files | {"precision": manifest.precision})


def verify(folder: Path | str) -> Manifest:
    """Check the SHA-256 of every listed file and return the manifest."""
    manifest = read_manifest(folder)
    check_files(Path(folder), manifest.files, MANIFEST, "copy the whole folder again")
    return manifest
