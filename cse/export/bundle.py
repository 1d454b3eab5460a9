"""Write a bundle: graph, tokenizer and manifest in one folder, published atomically."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cse.choices import Precision
from cse.export.as_domain import as_domain
from cse.export.graph import write_bank_graph, write_graph
from cse.export.half import halve
from cse.export.int8 import quantize
from cse.export.versions import versions
from cse.model.checkpoint import describe
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import (
    FORMAT,
    MANIFEST,
    MODEL,
    QUERY_SIDE,
    SIZES,
    TOKENIZER,
    Bundle,
    describe_files,
    documents_identity,
)
from cse.runtime.domain import SUFFIX
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, role_for


@dataclass
class Draft:
    """A bundle that is written but not yet published; further files in its folder are listed and sealed at the end.

    Attributes:
        parity: for the manifest, see ``check_parity``.
    """

    folder: Path
    manifest: Bundle
    parity: dict[str, Any] = field(default_factory=dict)


@contextmanager
def write_bundle(
    encoder: SentenceEncoder,
    out: Path,
    *,
    normalize: bool,
    metrics: dict[str, Any],
    checkpoint: str = "",
    precision: Precision = "fp32",
    texts: Sequence[str] = (),
) -> Iterator[Draft]:
    """Yield a loadable draft of the bundle to check; it replaces ``out`` when the block ends without an error.

    Args:
        normalize: whether embeddings have unit length by default.
        checkpoint: identity of the encoder's checkpoint; empty for a bare backbone.
        texts: ``int8``: what the ranges of activations are read from, some hundreds like those to come.
    """
    facts = describe(encoder)
    documents = encoder.documents or encoder
    with publish_folder(out, Kind.BUNDLE) as folder:
        if encoder.side == QUERY:
            facts["backbone"] |= _write_sides(encoder, folder, normalize=normalize, checkpoint=checkpoint)
        else:
            write_graph(encoder, folder / MODEL)
        if precision == "fp16":
            halve(folder / MODEL)
        # the tokenizer's own save does not raise OSError on a full disk
        (folder / TOKENIZER).write_text(encoder.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        manifest = Bundle(
            format=FORMAT,
            dimension=encoder.dimension,
            pooler=encoder.pooler,
            normalize=normalize,
            max_length=documents.max_length,
            pad_id=encoder.backbone.pad_id,
            files=describe_files(folder, [path.name for path in folder.glob("[!.]*")]),
            prompt=facts["prompt"] or {},
            backbone=facts["backbone"],
            versions=versions(),
            metrics=metrics,
            checkpoint=checkpoint,
            precision="fp32" if precision == "int8" else precision,
            texts=facts["texts"],
            widths=facts["widths"],
            side=encoder.side,
        )
        if precision == "int8":
            manifest.write(folder)
            quantize(folder / MODEL, _given(folder, texts))
            files = describe_files(folder, manifest.files)
            manifest = dataclasses.replace(manifest, precision=precision, files=files)
        if documents.adds_nothing:
            manifest = dataclasses.replace(manifest, documents=documents_identity(manifest))
        manifest.write(folder)
        draft = Draft(folder, manifest)
        yield draft
        added = {path.name for path in folder.glob("[!.]*")} - {MANIFEST, *manifest.files}
        files = manifest.files | describe_files(folder, added)
        Bundle(**vars(manifest) | {"files": files, "parity": draft.parity}).write(folder)


def _given(folder: Path, texts: Sequence[str]) -> list[dict[str, NDArray[Any]]]:
    """Return what a bundle's graph is given for texts; with a query side, half of them are queries."""
    onnx = OnnxEncoder(folder, provider="cpu", threads=1)
    roles = [role_for(QUERY, onnx.texts)] if onnx.query_side is None else [QUERY, None]
    return [onnx.graph_inputs(text, roles[number % len(roles)]) for number, text in enumerate(texts)]


def _write_sides(encoder: SentenceEncoder, folder: Path, *, normalize: bool, checkpoint: str) -> dict[str, int]:
    """Write the query side as a domain beside a graph that serves both sides; return the backbone's ``SIZES``.

    Prompts are inputs of the graph, as in a bank. Without any, it is the bare backbone's own, to the byte.
    """
    backbone = encoder.transformer
    query = as_domain(encoder, QUERY_SIDE.removesuffix(SUFFIX), normalize=normalize, checkpoint=checkpoint)
    if query.prompted:
        write_bank_graph(backbone, folder / MODEL)
    else:
        assert encoder.documents is not None  # noqa: S101 - of an encoder with a query side
        write_graph(encoder.documents, folder / MODEL)
    query.write(folder / QUERY_SIDE)
    sizes = (backbone.layers, backbone.heads, backbone.head_size, backbone.word_size, backbone.usable_length(0))
    return dict(zip(SIZES, sizes, strict=True))
