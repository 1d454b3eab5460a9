r"""Masked language modelling alongside the contrastive loss (DCPCSE section 2.2, Jiang and Wang 2022).

With ``C`` the chosen tokens of all sentences in a batch::

    L = -1/|C| sum_{c in C} log softmax(logits_c)[label_c]
    weight(step) = weight * rate ** (step / every)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


def masked_lm(logits_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, a scalar in nats; 0 with zero gradient if nothing was chosen.

    Args:
        logits_ND: logits at the chosen positions only, ``(N, vocabulary)``.
        labels_N: ids of the original tokens there, int64.
    """
    return masked_lm_sum(logits_ND, labels_N) / max(len(labels_N), 1)


@in_float32
def masked_lm_sum(logits_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    """Return the summed cross-entropy; add the sums of a batch's slices to get that of the batch."""
    return F.cross_entropy(logits_ND, labels_N, reduction="sum")


def decayed_weight(step: int, *, weight: float, rate: float, every: float) -> float:
    """Return the weight of this term after ``step`` updates; the exponent is real, so it decays at every step.

    Args:
        weight: weight at step 0.
        rate: factor on the weight per ``every`` updates.
        every: updates per factor of ``rate``.
    """
    return weight * rate ** (step / every)
