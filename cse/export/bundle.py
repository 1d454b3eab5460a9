"""Write a bundle, of one model or a bank of many: graph, tokenizer and manifest in one folder, published atomically."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from cse.artifact import hash_files
from cse.choices import Precision
from cse.export.as_domain import make_domain, versions
from cse.export.graph import write_bank_graph, write_graph
from cse.export.precision import halve, quantize
from cse.export.row_updates import RowUpdates
from cse.model.backbone import Backbone
from cse.model.checkpoint import describe
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import DOMAINS, FORMAT, MODEL, TOKENIZER, Manifest, documents_identity, file_of
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
    bank: bool = False,
    adapters: Sequence[str] | None = None,
) -> Iterator[Draft]:
    """Yield a loadable draft of the bundle to check; it replaces ``out`` when the block ends without an error.

    Args:
        normalize: whether embeddings have unit length by default.
        checkpoint: identity of the encoder's checkpoint; empty for a bare backbone.
        texts: ``int8``: what the ranges of activations are read from, some hundreds like those to come.
        bank: whether it is one of many domains, none yet, on the encoder, a bare backbone.
        adapters: of a bank, as of ``write_bank_graph``.
    """
    documents, described = encoder.documents or encoder, describe(encoder)
    only = "" if bank else "model" if encoder.side != QUERY else "query"
    facts: dict[str, Any] = {"texts": encoder.texts, "widths": list(encoder.widths), "side": encoder.side}
    kind = Kind.BANK if bank else Kind.BUNDLE
    with publish_folder(out, kind) as folder:
        inputs = bank  # whether prompts are the graph's inputs; else they are its constants
        if bank:
            (folder / DOMAINS).mkdir()
            facts = {"adapters": list(adapters or ())}
            facts |= {"updates": {} if adapters is None else RowUpdates(encoder.transformer, adapters).widths}
        elif encoder.side == QUERY:  # one graph for both sides; of a map alone, it is the bare backbone's, to the byte
            query = make_domain(encoder, only, normalize=normalize, checkpoint=checkpoint, alone=True)
            (folder / DOMAINS).mkdir()
            query.write(folder / file_of(only))
            inputs = query.prompted
        if inputs:
            write_bank_graph(encoder.transformer, folder / MODEL, adapters=adapters)
        else:
            write_graph(documents, folder / MODEL)
        if precision == "fp16":
            halve(folder / MODEL)
        # the tokenizer's own save does not raise OSError on a full disk
        (folder / TOKENIZER).write_text(encoder.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        if isinstance(backbone := encoder.backbone, Backbone):
            facts |= {"layers": backbone.layers, "heads": backbone.heads, "head_size": backbone.head_size}
            facts |= {"words": backbone.word_size, "positions": backbone.usable_length(0)}
        manifest = Manifest(
            format=FORMAT,
            dimension=encoder.dimension,
            pooler=encoder.pooler,
            normalize=normalize,
            max_length=documents.max_length,
            pad_id=backbone.pad_id,
            files=hash_files(folder, kind),
            only=only,
            prompt=described["prompt"] or {},
            backbone=described["backbone"],
            versions=versions(),
            metrics=metrics,
            checkpoint=checkpoint,
            precision="fp32" if precision == "int8" else precision,
            **facts,
        )
        if precision == "int8":
            manifest.write(folder)
            quantize(folder / MODEL, _given(folder, texts))
            manifest = replace(manifest, precision=precision, files=hash_files(folder, kind))
        if documents.adds_nothing:
            manifest = replace(manifest, documents=documents_identity(manifest))
        manifest.write(folder)
        draft = Draft(folder, manifest)
        yield draft
        replace(manifest, files={}, parity=draft.parity).write(folder)


def _given(folder: Path, texts: Sequence[str]) -> list[dict[str, NDArray[Any]]]:
    """Return what a bundle's graph is given for texts; with a query side, half of them are queries."""
    onnx = OnnxEncoder(folder, provider="cpu", threads=1)
    roles = [role_for(QUERY, onnx.texts)] if onnx.query_side is None else [QUERY, None]
    return [onnx.graph_inputs(text, roles[number % len(roles)]) for number, text in enumerate(texts)]
