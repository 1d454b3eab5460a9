"""A bank in torch: the reference that its ONNX graph is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cse.export.bank_pass import BankPass
from cse.model.backbone import Backbone, load_backbone
from cse.model.checkpoint import find_recorded_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bank import Bank, Chosen
from cse.runtime.compatible import Compatible
from cse.runtime.encode import Encoded
from cse.runtime.mixed import encode_mixed, prepare_mixed
from cse.runtime.uses import refuse_uses


class BankEncoder(Compatible, nn.Module):
    """Encodes sentences, each with the prompts of its domain.

    Args:
        backbone: the frozen language model that the bank was made of.
    """

    bank: Bank

    def __init__(self, backbone: Backbone, bank: Bank) -> None:
        super().__init__()
        self.bank = bank
        self.bare = SentenceEncoder(backbone)
        self.bank_pass = BankPass(backbone, bank.manifest.adapters if bank.manifest.updates else None)
        self.texts = self.bare.texts
        self.eval()

    @classmethod
    def load(cls, folder: str | Path, *, backbone: str | None = None) -> BankEncoder:
        """Load a bank.

        Args:
            backbone: where the language model is now, if it moved.
        """
        bank = Bank(folder)
        files = find_recorded_backbone(bank.folder, {"backbone": bank.manifest.backbone}, backbone)
        return cls(load_backbone(files), bank)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self.bare.dimension

    def encode_counting(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        domain: Chosen = None,
        role: str | None = None,
        dimensions: int | None = None,
    ) -> Encoded:
        """Encode like ``encode``, in float32 without dropout, and count the sentences that were cut."""
        refuse_uses(None, dimensions)
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()

        def run(given: dict[str, np.ndarray]) -> np.ndarray:
            moved = {name: torch.from_numpy(array).to(device) for name, array in given.items()}
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                return self.bank_pass(**moved).float().cpu().numpy()

        try:
            prepared = prepare_mixed(
                self.bank,
                sentences,
                domain,
                role=role,
                tokenizers=self.bare.text_tokenizers,
                max_length=self.bare.max_length,
            )
            return encode_mixed(
                prepared,
                run,
                normalize=True if normalize is None else normalize,
                dimension=self.dimension,
                pad_id=self.bare.backbone.pad_id,
                batch_size=64 if batch_size is None else batch_size,
                show_progress_bar=show_progress_bar,
            )
        finally:
            self.train(was_training)
