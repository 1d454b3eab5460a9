"""Masked language modelling alongside the contrastive loss, with the same prompts (DCPCSE; Jiang et al. 2022)."""

from __future__ import annotations

import numpy as np
import torch

from cse.model.mlm_head import MlmHead
from cse.model.on_device import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.masked_lm import decayed_weight, masked_lm_sum
from cse.training.batch import Batch, Slice
from cse.training.corruption import Vocabulary, mask_tokens
from cse.training.terms.term import Term


class MaskedLm(Term):
    """Predict masked tokens of every sentence of the batch in a second pass with the same prompt draw.

    Args:
        mask_share: share of tokens to predict.
        decay_rate, decay_steps: the weight is multiplied by ``decay_rate`` every ``decay_steps`` steps.
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
        count = 0
        for piece in batch.slices:
            masked_BL, chosen_N = self._mask(piece, batch.epoch)

            def predict(masked_BL: torch.Tensor, chosen_N: torch.Tensor, piece: Slice = piece) -> torch.Tensor:
                last_BLD = encoder.states(masked_BL, piece.mask_BL, piece.prefix())[-1]
                return masked_lm_sum(
                    self.head(last_BLD.flatten(0, 1)[chosen_N], table_VD), piece.ids_BL.flatten()[chosen_N]
                )

            total, count = total + piece.run(predict, masked_BL, chosen_N), count + len(chosen_N)
        return batch.group.over_all(total, torch.full_like(total, count))

    def _mask(self, piece: Slice, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ids with masked tokens ``(B, L)`` and the places ``(N,)`` of the chosen ones among all of them."""
        rows = piece.rows
        masked_BL, chosen_BL = mask_tokens(
            rows.ids_BL,
            rows.mask_BL,
            rows.index_BL,
            rows.views,
            self.vocabulary,
            share=self.mask_share,
            seed=self.seed,
            epoch=epoch,
        )
        masked, chosen = on_device([masked_BL, np.flatnonzero(chosen_BL)], piece.ids_BL.device)
        return masked, chosen
