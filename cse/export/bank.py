"""Create a bank, and make domains of trained encoders."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError, in_terms_of
from cse.export.as_domain import as_domain
from cse.export.bank_encoder import BankEncoder
from cse.export.graph import write_bank_graph
from cse.export.parity import check_parity
from cse.export.row_updates import KINDS, RowUpdates
from cse.export.versions import versions
from cse.model.backbone import Backbone
from cse.model.checkpoint import describe
from cse.model.pooling import TanhMlp
from cse.model.post import LinearMap
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.runtime.bank import DOMAINS, FORMAT, Bank, BankManifest
from cse.runtime.bundle import MODEL, TOKENIZER, describe_files
from cse.runtime.domain import DOMAIN_FORMAT, POOLERS, Domain, DomainFacts, check_name, update_shapes
from cse.runtime.mixed import DomainEncoder
from cse.runtime.onnx_encoder import OnnxEncoder

# What a new bank or domain is checked on where no text is given: short, long, empty.
SENTENCES = (
    "A man is playing a guitar.",
    "",
    "Why was my card declined at the supermarket although there is enough money in the account?",
    "Yes.",
    "The committee, which had met on Tuesday, postponed its decision until the figures were complete. " * 8,
)


def create_bank(
    encoder: SentenceEncoder, out: Path, *, tolerance: float, adapters: Sequence[str] | None = None
) -> float:
    """Write a bank without domains.

    Random prompts of several lengths are compared with torch before the bank is published.

    Args:
        encoder: any encoder on the backbone, on the CPU; only its backbone is used.
        adapters: layers whose low-rank updates a domain may have, see ``RowUpdates``, and biases of any; None: a domain
            has prompts alone. They slow every row.

    Returns:
        The largest difference from torch.
    """
    check_folder(out, Kind.BANK)
    backbone = _frozen_backbone(encoder)
    bare, updates = SentenceEncoder(backbone), {} if adapters is None else RowUpdates(backbone, adapters).widths
    with publish_folder(out, Kind.BANK) as folder:
        write_bank_graph(backbone, folder / MODEL, adapters=adapters)
        (folder / TOKENIZER).write_text(backbone.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        (folder / DOMAINS).mkdir()
        manifest = BankManifest(
            format=FORMAT,
            dimension=backbone.dimension,
            words=backbone.word_size,
            layers=backbone.layers,
            heads=backbone.heads,
            head_size=backbone.head_size,
            pooler=bare.pooler,
            max_length=bare.max_length,
            positions=backbone.usable_length(0),
            pad_id=backbone.pad_id,
            files=describe_files(folder, [path.name for path in folder.glob("[!.]*") if path.is_file()]),
            backbone={key: describe(bare)["backbone"][key] for key in ("name", "revision", "sha256")},
            versions=versions(),
            updates=updates,
            adapters=list(adapters or ()),
        )
        manifest.write(folder)
        onnx, own = OnnxEncoder(folder, provider="cpu"), BankEncoder(backbone, Bank(folder))
        found = [
            check_parity(DomainEncoder(own, domain), DomainEncoder(onnx, domain), SENTENCES, tolerance=tolerance)
            for domain in _random_domains(manifest)
        ]
        largest: float = max(one["largest_difference"] for one in found)
        dataclasses.replace(manifest, parity=found[0] | {"largest_difference": largest}).write(folder)
    return largest


def make_domain(
    encoder: SentenceEncoder,
    name: str,
    *,
    normalize: bool = True,
    metrics: dict[str, Any] | None = None,
    checkpoint: str = "",
    centres: NDArray[np.float32] | None = None,
    bank: BankManifest | None = None,
) -> Domain:
    """Return an encoder's prompts, updates of its layers and the linear map behind them, as a domain.

    Args:
        encoder: trained prompts, biases or low-rank updates, or a bare backbone.
        normalize: whether embeddings have unit length by default.
        centres: see ``Domain``.
        bank: that it is for; None: one of prompts alone.
    """
    check_name(name)
    _layered(encoder)
    obstacle = _obstacle(encoder, takes_updates=bank is not None and bool(bank.updates))
    if obstacle:
        raise CseError(f"domain {name}: {obstacle}; export it as a bundle of its own (cse export)")
    with in_terms_of(f"domain {name}: "):
        return as_domain(
            encoder,
            name,
            normalize=normalize,
            metrics=metrics,
            checkpoint=checkpoint,
            centres=centres,
            adapters=() if bank is None else bank.adapters,
        )


def _layered(encoder: SentenceEncoder) -> Backbone:
    backbone = encoder.backbone
    if not isinstance(backbone, Backbone):
        raise CseError(f"{backbone.files.name}: word vectors have no layers that a prompt could enter")
    return backbone


def _frozen_backbone(encoder: SentenceEncoder) -> Backbone:
    backbone = _layered(encoder)
    if not encoder.frozen:
        raise CseError(
            "weights of the language model were trained, and a bank begins with one that was not; create it of "
            f"{backbone.files.name}"
        )
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


def _random_domains(manifest: BankManifest) -> Iterator[Domain]:
    """Yield domains that use every input of the graph; no two have prompts of one length."""
    random = np.random.default_rng(0)
    shape = manifest.shape
    for length, pooler in ((7, "mean"), (0, manifest.pooler), (2, "cls"), (1, "last")):
        shift = length if length == 2 else 0
        longest = min(manifest.max_length, shape.positions - shift)
        sizes = (longest, shape.dimension, shape.words)
        facts = DomainFacts(DOMAIN_FORMAT, f"random-{length}", shape.backbone, pooler, True, shift, *sizes, {})
        prompt = random.normal(size=(2 * shape.layers, shape.heads, length, shape.head_size)).astype(np.float32)
        cls = random.normal(scale=0.05, size=shape.words).astype(np.float32) if length == 2 else None
        shapes = update_shapes(manifest.updates, length) if length != 1 and manifest.updates else {}
        updates = {key: random.normal(scale=0.05, size=size).astype(np.float32) for key, size in shapes.items()}
        yield Domain(facts, prompt, cls, **updates)
