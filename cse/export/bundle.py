"""Write a bundle: graph, tokenizer and manifest in one folder, published atomically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cse.artifact import hash_files
from cse.choices import Precision
from cse.export.as_domain import as_domain, versions
from cse.export.graph import write_bank_graph, write_graph
from cse.export.half import halve
from cse.export.int8 import quantize
from cse.model.backbone import Backbone
from cse.model.checkpoint import describe
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest, documents_identity, file_of
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, role_for


@dataclass
class Draft:
    """A bundle that is written but not yet published; further files in its folder are listed and sealed at the end.

    Attributes:
        parity: for the manifest, see ``check_parity``.
    """

    folder: Path
    manifest: Manifest
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
    documents = encoder.documents or encoder
    only = "model" if encoder.side != QUERY else "query"
    with publish_folder(out, Kind.BUNDLE) as folder:
        if encoder.side != QUERY:
            write_graph(encoder, folder / MODEL)
        else:  # a graph for both sides: prompts are inputs; without any, it is the bare backbone's own, to the byte
            query = as_domain(encoder, only, normalize=normalize, checkpoint=checkpoint)
            if query.prompted:
                write_bank_graph(encoder.transformer, folder / MODEL)
            else:
                write_graph(documents, folder / MODEL)
            path = folder / file_of(only)
            path.parent.mkdir()
            query.write(path)
        if precision == "fp16":
            halve(folder / MODEL)
        manifest = replace(
            manifest_of(encoder, folder, only=only),
            normalize=normalize,
            prompt=describe(encoder)["prompt"] or {},
            metrics=metrics,
            checkpoint=checkpoint,
            precision="fp32" if precision == "int8" else precision,
            texts=encoder.texts,
            widths=list(encoder.widths),
            side=encoder.side,
        )
        if precision == "int8":
            manifest.write(folder)
            quantize(folder / MODEL, _given(folder, texts))
            manifest = replace(manifest, precision=precision, files=hash_files(folder, Kind.BUNDLE))
        if documents.adds_nothing:
            manifest = replace(manifest, documents=documents_identity(manifest))
        manifest.write(folder)
        draft = Draft(folder, manifest)
        yield draft
        replace(manifest, files={}, parity=draft.parity).write(folder)


def manifest_of(encoder: SentenceEncoder, folder: Path, *, only: str, **fields: Any) -> Manifest:
    """Write the tokenizer beside a graph, and return the manifest of the folder."""
    # the tokenizer's own save does not raise OSError on a full disk
    (folder / TOKENIZER).write_text(encoder.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
    backbone = encoder.backbone
    if isinstance(backbone, Backbone):
        sizes = {key: getattr(backbone, key) for key in ("layers", "heads", "head_size")}
        fields |= {**sizes, "words": backbone.word_size, "positions": backbone.usable_length(0)}
    return Manifest(
        format=FORMAT,
        dimension=encoder.dimension,
        pooler=encoder.pooler,
        normalize=True,
        max_length=(encoder.documents or encoder).max_length,
        pad_id=backbone.pad_id,
        files=hash_files(folder, Kind.BUNDLE),
        only=only,
        backbone=describe(encoder)["backbone"],
        versions=versions(),
        **fields,
    )


def _given(folder: Path, texts: Sequence[str]) -> list[dict[str, NDArray[Any]]]:
    """Return what a bundle's graph is given for texts; with a query side, half of them are queries."""
    onnx = OnnxEncoder(folder, provider="cpu", threads=1)
    roles = [role_for(QUERY, onnx.texts)] if onnx.query_side is None else [QUERY, None]
    return [onnx.graph_inputs(text, roles[number % len(roles)]) for number, text in enumerate(texts)]
