"""NT-Xent on the first numbers of each vector, so that vectors may be cut (Matryoshka, Kusupati et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.cosine import cosines
from cse.objectives.nt_xent import nt_xent
from cse.training.batch import Batch
from cse.training.terms.term import Term


class Matryoshka(Term):
    """Mean over ``widths`` of NT-Xent on vectors cut to that many numbers (equation 1 with equal weights).

    Args:
        encoder: the encoder being trained.
        weight: weight of this term.
        widths: numbers of dimensions, each below the encoder's.
        temperature: divides the cosines.
        hard_negative_weight: added to the logit of a row's own hard negative.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        *,
        weight: float,
        widths: Sequence[int],
        temperature: float,
        hard_negative_weight: float,
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.widths = tuple(widths)
        self.temperature = temperature
        self.hard_negative_weight = hard_negative_weight

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean over widths of the mean cross-entropy over the anchors."""
        losses = []
        for width in self.widths:
            anchor_BD, positive_BD, *rest = (view_BD[:, :width] for view_BD in batch.views)
            losses.append(
                nt_xent(
                    cosines(anchor_BD, positive_BD),
                    cosines(anchor_BD, rest[0]) if rest else None,
                    temperature=self.temperature,
                    hard_negative_weight=self.hard_negative_weight,
                )
            )
        return torch.stack(losses).mean()
