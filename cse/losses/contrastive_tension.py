r"""Contrastive Tension (CT, Carlsson et al. 2021, figure in appendix A.1).

Two independent copies of a model read a sentence ``s``, itself and ``K`` other sentences ``s_k``. In each group of
``K + 1`` pairs ``(s, s), (s, s_1), ..., (s, s_K)``::

    x_k = first(s) . second(s_k)              plain dot product, neither cosine nor temperature
    L   = mean over pairs of -log sigmoid(x_k) if s_k is s, else -log sigmoid(-x_k)
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F

from cse.losses.shared import Batch, Loss, in_float32
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import ContrastiveTensionSettings


@in_float32
def contrastive_tension(first_BD: torch.Tensor, second_BD: torch.Tensor, *, group: int) -> torch.Tensor:
    """Return the mean binary cross-entropy, a scalar in nats.

    Args:
        first_BD: embeddings from the first copy, group after group; only the anchor, a group's first row, is used.
        second_BD: embeddings of the same sentences from the second copy, the candidates.
        group: rows per group, including the positive (8 in the paper); it divides the rows.
    """
    candidate_BND = second_BD.reshape(len(first_BD) // group, group, -1)
    logits_BN = torch.einsum("bd,bnd->bn", first_BD[::group], candidate_BND)
    labels_BN = torch.zeros_like(logits_BN)
    labels_BN[:, 0] = 1.0
    return F.binary_cross_entropy_with_logits(logits_BN, labels_BN)


class ContrastiveTension(Loss[ContrastiveTensionSettings]):
    """The first copy, the encoder, reads the anchors and is kept after training; the second reads the candidates."""

    def __init__(self, encoder: SentenceEncoder, settings: ContrastiveTensionSettings) -> None:
        super().__init__(encoder, settings)
        self.second = copy.deepcopy(encoder)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean; ignore an incomplete last group."""
        (first_BD, *_) = batch.views  # more views if another loss compares copies
        second_BD = batch.embed_anchors(self.second)
        group = self.settings.group
        whole = len(first_BD) // group * group
        if whole == 0:
            return (first_BD.sum() + second_BD.sum()) * 0.0
        return contrastive_tension(first_BD[:whole], second_BD[:whole], group=group)
