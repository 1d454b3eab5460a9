"""Write a bundle, of one model or a bank of many: graph, tokenizer and manifest in one folder, published atomically.

What was trained on a frozen backbone is also a domain: one file whose prompts are inputs of a graph.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cse.artifact import hash_files
from cse.choices import Precision
from cse.errors import CseError, in_terms_of
from cse.export.graph import write_bank_graph, write_graph
from cse.export.precision import halve, quantize
from cse.export.row_updates import KINDS, RowUpdates, updates_of
from cse.model.backbone import Backbone
from cse.model.checkpoint import describe
from cse.model.pooling import TanhMlp
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import DOMAINS, FORMAT, MODEL, TOKENIZER, Manifest, documents_identity, file_of
from cse.runtime.domain import DOMAIN_FORMAT, POOLERS, Domain, DomainFacts, Shape, check_name, hashes_of
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, role_for

# of packages that decide what is exported
_PACKAGES = ("cse", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "tokenizers")


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
    documents = encoder.documents or encoder
    only = "" if bank else "model" if encoder.side != QUERY else "query"
    own: dict[str, Any] = {"normalize": normalize, "checkpoint": checkpoint}
    kind = Kind.BANK if bank else Kind.BUNDLE
    with publish_folder(out, kind) as folder:
        inputs, inside = bank, facts_of(documents, only, **own)  # inputs: whether prompts are the graph's
        if bank:
            (folder / DOMAINS).mkdir()
        elif encoder.side == QUERY:  # one graph for both sides; of a map alone, it is the bare backbone's, to the byte
            query = make_domain(encoder, only, alone=True, **own)
            (folder / DOMAINS).mkdir()
            query.write(folder / file_of(only))
            inputs, inside = query.prompted, facts_of(documents, "", normalize=normalize)
        if inputs:
            write_bank_graph(encoder.transformer, folder / MODEL, adapters=adapters)
        else:
            write_graph(documents, folder / MODEL)
        if precision == "fp16":
            halve(folder / MODEL)
        # the tokenizer's own save does not raise OSError on a full disk
        (folder / TOKENIZER).write_text(encoder.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        backbone = encoder.backbone
        shape = Shape(
            inside.backbone,
            backbone.layers,
            backbone.heads,
            backbone.head_size,
            inside.width,
            inside.words,
            positions=backbone.usable_length(0) if isinstance(backbone, Backbone) else 0,
            updates={} if adapters is None else RowUpdates(encoder.transformer, adapters).widths,
            adapters=list(adapters or ()),
        )
        manifest = Manifest(
            format=FORMAT,
            pad_id=backbone.pad_id,
            domain=inside,
            shape=shape,
            only=only,
            files=hash_files(folder, kind),
            backbone=describe(encoder)["backbone"],
            metrics=metrics,
            precision="fp32" if precision == "int8" else precision,
            widths=[] if bank else list(encoder.widths),
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


# ---- a domain -------------------------------------------------------------------------------------------------------


def make_domain(
    encoder: SentenceEncoder,
    name: str,
    *,
    normalize: bool = True,
    metrics: dict[str, Any] | None = None,
    checkpoint: str = "",
    centres: NDArray[np.float32] | None = None,
    shape: Shape | None = None,
    alone: bool = False,
) -> Domain:
    """Return an encoder's deep prompt, trained ``[CLS]``, projector, linear map and updates of its layers, as a domain.

    Args:
        encoder: trained prompts, biases or low-rank updates, or a bare backbone.
        normalize: whether embeddings have unit length by default.
        centres: see ``Domain``.
        shape: of the bank that it is for; None: one of prompts alone.
        alone: whether it is the query side of its own bundle, which has the rest of it.
    """
    backbone = layered(encoder)
    if obstacle := "" if alone else _obstacle(encoder, takes_updates=shape is not None and bool(shape.updates)):
        raise CseError(f"domain {name}: {obstacle}; export it as a bundle of its own (cse export)")
    adapters = [] if shape is None or encoder.frozen else list(shape.adapters)
    with torch.no_grad(), in_terms_of(f"domain {name}: "):
        prefix = encoder.prefix() or []
        blocks = [block for pair in prefix for block in pair]
        empty = torch.empty((2 * backbone.layers, backbone.heads, 0, backbone.head_size))
        tensors = {"prompt": _array(torch.stack(blocks) if blocks else empty)}
        if encoder.cls is not None:
            tensors["cls"] = _array(encoder.cls)
        if isinstance(encoder.mlp, TanhMlp) and encoder.read_out.mlp == "always":
            tensors["projector_weight"] = _array(encoder.mlp.dense.weight)
            tensors["projector_bias"] = _array(encoder.mlp.dense.bias)
        if isinstance(encoder.post, LinearMap):
            tensors |= {"map_mean": _array(encoder.post.mean), "map_matrix": _array(encoder.post.matrix)}
        if not encoder.frozen:
            tensors |= {key: _array(tensor) for key, tensor in updates_of(encoder, adapters).items()}
    if centres is not None:
        tensors["centres"] = np.ascontiguousarray(centres, np.float32)
    facts = replace(
        facts_of(encoder, check_name(name), normalize=normalize, checkpoint=checkpoint),
        position_shift=encoder.shift,
        width=backbone.dimension,
        hashes=hashes_of(tensors),
        metrics=metrics or {},
        adapters=adapters,
    )
    return Domain(facts, **tensors)


def facts_of(encoder: SentenceEncoder, name: str, *, normalize: bool, checkpoint: str = "") -> DomainFacts:
    """Return the facts of an encoder as the domain in a graph, whose prompts and all that is behind it are there."""
    backbone = encoder.backbone
    return DomainFacts(
        format=DOMAIN_FORMAT,
        name=name,
        backbone=backbone.files.sha256,
        pooler=encoder.pooler,
        normalize=normalize,
        position_shift=0,
        max_length=encoder.max_length,
        width=encoder.dimension,
        words=backbone.word_size if isinstance(backbone, Backbone) else 0,
        hashes={},
        prompt=describe(encoder)["prompt"] or {},
        checkpoint=checkpoint,
        versions=versions(),
        texts=encoder.texts if any(encoder.texts.values()) else {},
        side=encoder.side,
    )


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def layered(encoder: SentenceEncoder) -> Backbone:
    """Return the backbone of an encoder that a domain can be made of."""
    backbone = encoder.backbone
    if not isinstance(backbone, Backbone):
        raise CseError(f"{backbone.files.name}: word vectors have no layers that a prompt could enter")
    return backbone


def _obstacle(encoder: SentenceEncoder, *, takes_updates: bool) -> str:
    """Return what keeps an encoder out of a bank, or an empty string."""
    if not encoder.frozen and encoder.trained not in KINDS:
        return f"weights of the language model were trained ({encoder.trained}), so a bank's backbone is not its own"
    if not encoder.frozen and not takes_updates:
        return (
            f"it has {'low-rank updates' if encoder.trained == 'lora' else 'biases'} of the language model's layers, "
            "and the bank takes prompts alone; create a bank with bank.adapters, or"
        )
    if encoder.prompt is not None and not encoder.prompt.deep:
        return "an input-layer prompt has no keys and values of its own"
    if encoder.templates:
        return "a template puts words around the sentence, and a bank has one tokenizer"
    if encoder.post is not None and not isinstance(encoder.post, LinearMap):
        return f"post-processing ({encoder.post.config()['kind']}) is not part of a bank"
    if encoder.pooler not in POOLERS:
        return f"pooler {encoder.pooler} is not part of a bank, which has {', '.join(POOLERS)}"
    if encoder.read_out.mlp == "always" and not isinstance(encoder.mlp, TanhMlp):
        return f"projector {encoder.read_out.projector} is not part of a bank, which has tanh"
    if encoder.widths:
        return f"it has shorter vectors ({', '.join(map(str, encoder.widths))}), and a bank has none"
    return ""


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what is exported, as far as they are installed."""
    found = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # run from its tree, or onnxruntime without a GPU
            found[name] = importlib.metadata.version(name)
    return found
