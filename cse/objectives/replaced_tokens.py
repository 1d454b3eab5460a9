r"""Replaced-token detection (DiffCSE, Chuang et al. 2022; D2CSE equation 2).

With ``y_bl = 1`` where token ``l`` of sentence ``b`` was replaced and ``c_bl = -log softmax(logits_bl)[y_bl]``::

    positions   1/(B * L) sum_{b, l} c_bl     over all positions; y = 0 at padding (code of DiffCSE)
    tokens      1/T sum_{real b, l} c_bl      over the T real tokens
    sum         1/B sum_{real b, l} c_bl      sum over a sentence's tokens, mean over sentences (D2CSE equation 2)

In the papers the discriminator gives the probability of "original". Here, as in the code, class 1 is "replaced"; the
loss is the same. ``positions`` depends on padding: ``L`` is the length of the longest row in the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32


def replaced_tokens(
    logits_BL2: torch.Tensor, replaced_BL: torch.Tensor, mask_BL: torch.Tensor, *, normalize: str
) -> torch.Tensor:
    """Return the loss, a scalar in nats; 0 with zero gradient if there is nothing to average.

    Arguments and errors as in :func:`replaced_tokens_sums`.
    """
    total, count = replaced_tokens_sums(logits_BL2, replaced_BL, mask_BL, normalize=normalize)
    return total / count.clamp(min=1)


@in_float32
def replaced_tokens_sums(
    logits_BL2: torch.Tensor, replaced_BL: torch.Tensor, mask_BL: torch.Tensor, *, normalize: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed cross-entropy and its divisor, two scalars.

    For a batch encoded in slices, add up both over the slices and divide the total sum by the total count. With
    ``positions``, pad all slices to the longest row of the batch.

    Args:
        logits_BL2: logits of "original" and "replaced", ``(B, L, 2)``.
        replaced_BL: 1 or True where the token differs from the original; ignored at padding.
        mask_BL: 1 or True at real tokens.
        normalize: ``positions``, ``tokens`` or ``sum``. ``sum`` does not count rows of padding only as sentences.
    """
    real_BL = mask_BL.bool()
    labels_BL = (replaced_BL.bool() & real_BL).long()
    losses_BL = F.cross_entropy(logits_BL2.flatten(0, 1), labels_BL.flatten(), reduction="none").view_as(real_BL)
    if normalize == "positions":
        return losses_BL.sum(), losses_BL.new_full((), losses_BL.numel())
    total = losses_BL.where(real_BL, 0.0).sum()
    if normalize == "tokens":
        return total, real_BL.sum().to(total.dtype)
    if normalize == "sum":
        return total, real_BL.any(dim=1).sum().to(total.dtype)
    raise ValueError(f"objective.replaced_tokens.normalize: {normalize!r} is not one of positions, tokens, sum")
