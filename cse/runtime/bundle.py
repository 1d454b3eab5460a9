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
    write_manifest,
)
from cse.errors import CseError
from cse.runtime.domain import SUFFIX, UPDATES, DomainFacts, Shape

FORMAT = 5
MANIFEST = Kind.BUNDLE.manifest
MODEL = "model.onnx"
TOKENIZER = "tokenizer.json"
DOMAINS = "domains"
SHORTEST, LONGEST = 3, 100_000  # limits of max_length: begin, one token, end; word vectors allow the most
WIDEST = 1_000_000


@dataclass(frozen=True)
class Manifest:
    """Contents of ``bundle.json``, except its kind and its seal.

    Attributes:
        domain: the one that needs no file: the only model, if the graph has its prompts, else the bare backbone.
        only: name of the one domain; empty: a bank, whose domains are the files in ``domains``.
        files: SHA-256 (hex) of each other file by name; empty: hashed when it is written.
        backbone: id, revision and SHA-256 of the backbone's weights.
        parity: largest difference from torch, and where it was measured.
        precision: of weights and matrix products, ``fp32``, ``fp16`` or ``int8``.
        widths: numbers of dimensions that vectors may be cut to.
        documents: identity of the documents' vectors, see ``documents_identity``; empty if training changed them.
        shape: what a domain must fit; where none is in a file, of the vectors alone.
    """

    format: int
    pad_id: int
    domain: DomainFacts
    shape: Shape
    only: str = "model"
    files: dict[str, str] = field(default_factory=dict)
    backbone: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"
    widths: list[int] = field(default_factory=list)
    documents: str = ""

    @property
    def constant(self) -> bool:
        """Whether the one domain is in the graph, and in no file of its own."""
        return self.only != "" and self.only == self.domain.name

    def write(self, folder: Path | str) -> None:
        """Write ``bundle.json`` into the folder."""
        write_manifest(Path(folder), Kind.BUNDLE if self.only else Kind.BANK, dataclasses.asdict(self))


def file_of(name: str) -> str:
    """Return where the domain of a name lies in a folder."""
    return f"{DOMAINS}/{name}{SUFFIX}"


def read_manifest(folder: Path | str) -> Manifest:
    """Read ``bundle.json``, ignoring unknown keys."""
    path, again = Path(folder) / MANIFEST, "export the bundle, or create the bank, again"
    try:
        tree = open_manifest(path.parent, Kind.BUNDLE, Kind.BANK, version=FORMAT, again=again)
    except (FileNotFoundError, NotADirectoryError):
        raise CseError(_no_manifest(path.parent)) from None
    manifest = fields_of(Manifest, tree, path, again)
    shape, longest, least = manifest.shape, manifest.domain.max_length, 0 if manifest.constant else 1
    values: dict[str, Any] = {"max_length": longest, "pad_id": manifest.pad_id, **vars(shape), **shape.updates}
    limits = {"dimension": (1, WIDEST), "max_length": (SHORTEST, LONGEST), "pad_id": (0, 2**31)}
    limits |= dict.fromkeys(("layers", "heads", "head_size", "words"), (least, WIDEST))
    limits |= {"positions": (least * longest, 2**31), **dict.fromkeys(shape.updates, (0, 2**31))}
    check_limits(values, limits, path, again)
    if not all(1 <= width <= shape.dimension for width in manifest.widths):
        raise CseError(f"{path}: widths are not those of a model of {shape.dimension} dimensions; {again}")
    if shape.updates and tuple(shape.updates) != UPDATES:
        raise CseError(f"{path}: updates should have {', '.join(UPDATES)}; {again}")
    in_file = [file_of(manifest.only)] if manifest.only and not manifest.constant else []
    check_entries(manifest.files, path, (MODEL, TOKENIZER, *in_file), again)
    return manifest


def _no_manifest(folder: Path) -> str:
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
    facts = {"pooler": manifest.domain.pooler, "max_length": manifest.domain.max_length, "pad_id": manifest.pad_id}
    files = {"backbone": manifest.backbone.get("sha256"), "tokenizer": manifest.files[TOKENIZER]}
    if manifest.precision == "int8":
        files["graph"] = digest({name: manifest.files[name] for name in manifest.files if name.startswith(MODEL)})
    return digest(facts | files | {"precision": manifest.precision})


def verify(folder: Path | str) -> Manifest:
    """Check the SHA-256 of every listed file and return the manifest."""
    manifest = read_manifest(folder)
    check_files(Path(folder), manifest.files, MANIFEST, "copy the whole folder again")
    return manifest
