"""Create a bank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cse.errors import CseError
from cse.export.as_domain import layered
from cse.export.bank_encoder import BankEncoder
from cse.export.bundle import manifest_of
from cse.export.graph import write_bank_graph
from cse.export.parity import check_parity
from cse.export.row_updates import RowUpdates
from cse.model.backbone import Backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder, publish_folder
from cse.runtime.bank import Bank
from cse.runtime.bundle import DOMAINS, MODEL, Manifest, documents_identity
from cse.runtime.domain import Domain, update_shapes
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
    updates = {} if adapters is None else RowUpdates(backbone, adapters).widths
    with publish_folder(out, Kind.BANK) as folder:
        write_bank_graph(backbone, folder / MODEL, adapters=adapters)
        (folder / DOMAINS).mkdir()
        manifest = manifest_of(
            SentenceEncoder(backbone), folder, only="", updates=updates, adapters=list(adapters or ())
        )
        manifest = replace(manifest, documents=documents_identity(manifest))
        manifest.write(folder)
        onnx, own = OnnxEncoder(folder, provider="cpu"), BankEncoder(backbone, Bank(folder))
        found = [
            check_parity(own.of(domain), onnx.of(domain), SENTENCES, tolerance=tolerance)
            for domain in _random_domains(manifest)
        ]
        largest: float = max(one["largest_difference"] for one in found)
        replace(manifest, parity=found[0] | {"largest_difference": largest}).write(folder)
    return largest


def _frozen_backbone(encoder: SentenceEncoder) -> Backbone:
    backbone = layered(encoder)
    if not encoder.frozen:
        raise CseError(
            "weights of the language model were trained, and a bank begins with one that was not; create it of "
            f"{backbone.files.name}"
        )
    return backbone


def _random_domains(manifest: Manifest) -> Iterator[Domain]:
    """Yield domains that use every input of the graph; no two have prompts of one length."""
    random = np.random.default_rng(0)
    shape = manifest.shape
    for length, pooler in ((7, "mean"), (0, manifest.pooler), (2, "cls"), (1, "last")):
        shift = length if length == 2 else 0
        longest = min(manifest.max_length, shape.positions - shift)
        facts = manifest.facts(name=f"random-{length}", pooler=pooler, position_shift=shift, max_length=longest)
        prompt = random.normal(size=(2 * shape.layers, shape.heads, length, shape.head_size)).astype(np.float32)
        cls = random.normal(scale=0.05, size=shape.words).astype(np.float32) if length == 2 else None
        shapes = update_shapes(manifest.updates, length) if length != 1 and manifest.updates else {}
        updates = {key: random.normal(scale=0.05, size=size).astype(np.float32) for key, size in shapes.items()}
        yield Domain(facts, prompt, cls, **updates)
