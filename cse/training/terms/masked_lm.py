"""Masked language modelling alongside the contrastive loss, with the same prompts (DCPCSE; Jiang et al. 2022)."""

from __future__ import annotations

import numpy as np
import torch

from cse.model.mlm_head import MlmHead
from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.masked_lm import decayed_weight, masked_lm_sum
from cse.training.batch import Batch, Slice
from cse.training.corruption import Vocabulary, mask_tokens
from cse.training.terms.term import Term


class MaskedLm(Term):
    """Predict masked tokens of every sentence of the batch in a second pass with the same prompt draw.

    Args:
        encoder: the encoder being trained.
        head: the backbone's pretrained head.
        vocabulary: ids of the mask and of special tokens.
        weight: initial weight.
        mask_share: share of tokens to predict.
        decay_rate, decay_steps: the weight is multiplied by ``decay_rate`` every ``decay_steps`` steps.
        seed: seed for masking.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        head: MlmHead,
        vocabulary: Vocabulary,
        *,
        weight: float,
        mask_share: float,
        decay_rate: float,
        decay_steps: int,
        seed: int,
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.head = head
        self.vocabulary = vocabulary
        self.mask_share = mask_share
        self.decay = {"rate": decay_rate, "every": decay_steps}
        self.seed = seed

    def weight(self, step: int, own: float | None = None) -> float:
        """Return the decayed weight."""
        return decayed_weight(step, weight=super().weight(step, own), **self.decay)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean cross-entropy over all chosen tokens in the batch."""
        encoder = self.encoder
        table_VD = encoder.backbone.word_table
        total = torch.zeros((), device=batch.projected_XD.device)
        count = torch.zeros_like(total)
        for piece in batch.slices:
            masked_BL, chosen_BL = self._mask(piece, batch.epoch)

            def predict(masked_BL: torch.Tensor, chosen_BL: torch.Tensor, piece: Slice = piece) -> torch.Tensor:
                last_BLD = encoder.states(masked_BL, piece.mask_BL, piece.prefix())[-1]
                return masked_lm_sum(self.head(last_BLD[chosen_BL], table_VD), piece.ids_BL[chosen_BL])

            total, count = total + piece.run(predict, masked_BL, chosen_BL), count + chosen_BL.sum()
        return batch.group.over_all(total, count)

    def _mask(self, piece: Slice, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids_BL = piece.ids_BL.cpu().numpy()
        masked_BL, chosen_BL = mask_tokens(
            ids_BL,
            piece.mask_BL.cpu().numpy(),
            piece.starts[:, None] + np.arange(ids_BL.shape[1]),
            piece.view_B.cpu().numpy(),
            self.vocabulary,
            share=self.mask_share,
            seed=self.seed,
            epoch=epoch,
        )
        device = piece.ids_BL.device
        return torch.from_numpy(masked_BL).to(device), torch.from_numpy(chosen_BL).to(device)
