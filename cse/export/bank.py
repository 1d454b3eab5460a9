"""A bank in torch, and a new one, whose graph is compared with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cse.errors import CseError
from cse.export.bundle import layered, write_bundle
from cse.export.graph import BankPass
from cse.export.parity import check_parity
from cse.model.backbone import Backbone, load_backbone
from cse.model.checkpoint import find_recorded_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, check_folder
from cse.runtime.bank import Bank
from cse.runtime.bundle import Manifest, read_manifest
from cse.runtime.domain import Domain, update_shapes
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.session import Graph

# What a new bank or domain is checked on where no text is given: short, long, empty.
SENTENCES = (
    "A man is playing a guitar.",
    "",
    "Why was my card declined at the supermarket although there is enough money in the account?",
    "Yes.",
    "The committee, which had met on Tuesday, postponed its decision until the figures were complete. " * 8,
)


class _TorchGraph(Graph):
    """The pass, where an encoder takes a graph; gives float32, without dropout."""

    multiple, prompts = 1, True

    def __init__(self, bank_pass: BankPass) -> None:
        self.module = bank_pass

    def run(self, given: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        device = next(self.module.parameters()).device
        moved = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            found: NDArray[Any] = self.module(**moved).float().cpu().numpy()
            return found


class BankEncoder(OnnxEncoder):
    """A bank in torch: encodes as ``OnnxEncoder`` does, which has the graph of the same pass.

    Args:
        backbone: the frozen language model that the bank was made of.
        folder: the bank.
    """

    def __init__(self, backbone: Backbone, folder: str | Path) -> None:
        shape = Bank(folder, whole=False).of_many().manifest.shape
        self._pass = BankPass(backbone, shape.adapters if shape.updates else None).eval()
        super().__init__(folder, provider="cpu", threads=1, graph=_TorchGraph(self._pass))

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | None = None) -> BankEncoder:
        """Load a bank.

        Args:
            backbone: where the language model is now, if it moved.
        """
        made_of = {"backbone": read_manifest(folder).backbone}
        files = find_recorded_backbone(Path(folder), made_of, backbone)
        return cls(load_backbone(files), folder)

    def to(self, device: str) -> BankEncoder:
        """Move it to a device, and return it."""
        self._pass.to(device)
        self.provider = torch.device(device).type
        return self


def create_bank(
    encoder: SentenceEncoder, out: Path, *, tolerance: float, adapters: Sequence[str] | None = None
) -> float:
    """Write a bank without domains, and return its largest difference from torch.

    It is compared with prompts of several lengths, drawn at random, before it is published.

    Args:
        encoder: any encoder on the backbone, on the CPU; only its backbone is used.
        adapters: layers whose low-rank updates a domain may have, see ``RowUpdates``, and biases of any; None: a domain
            has prompts alone. They slow every row.
    """
    check_folder(out, Kind.BANK)
    backbone = layered(encoder)
    if not encoder.frozen:
        raise CseError(
            "weights of the language model were trained, and a bank begins with one that was not; create it of "
            f"{backbone.files.name}"
        )
    bare = SentenceEncoder(backbone)
    with write_bundle(bare, out, normalize=True, metrics={}, bank=True, adapters=adapters) as draft:
        onnx, own = OnnxEncoder(draft.folder, provider="cpu"), BankEncoder(backbone, draft.folder)
        found = [
            check_parity(own.of(domain), onnx.of(domain), SENTENCES, tolerance=tolerance)
            for domain in _random_domains(draft.manifest)
        ]
        largest: float = max(one["largest_difference"] for one in found)
        draft.parity = found[0] | {"largest_difference": largest}
    return largest


def _random_domains(manifest: Manifest) -> Iterator[Domain]:
    """Yield domains that use every input of the graph; no two have prompts of one length."""
    random = np.random.default_rng(0)
    shape = manifest.shape
    for length, pooler in ((7, "mean"), (0, manifest.domain.pooler), (2, "cls"), (1, "last")):
        shift = length if length == 2 else 0
        longest = min(manifest.domain.max_length, shape.positions - shift)
        own: dict[str, Any] = {"pooler": pooler, "position_shift": shift, "max_length": longest}
        facts = replace(manifest.domain, name=f"random-{length}", **own)
        prompt = random.normal(size=(2 * shape.layers, shape.heads, length, shape.head_size)).astype(np.float32)
        cls = random.normal(scale=0.05, size=shape.words).astype(np.float32) if length == 2 else None
        shapes = update_shapes(shape.updates, length) if length != 1 and shape.updates else {}
        updates = {key: random.normal(scale=0.05, size=size).astype(np.float32) for key, size in shapes.items()}
        yield Domain(facts, prompt, cls, **updates)
