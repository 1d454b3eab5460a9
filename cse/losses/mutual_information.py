r"""Mutual information between tokens and sentences (IS-BERT, Zhang et al. 2020, equation 2).

With ``t_nb = token_n . sentence_b``, ``softplus(x) = log(1 + exp(x))`` and the means taken over pairs of a real token
and a sentence of the batch::

    I = mean_{n in b} -softplus(-t_nb)  -  mean_{n not in b} softplus(t_nb)
    L = -I

This is the Jensen-Shannon estimator as printed in the paper, without a constant: ``L >= 0``, and ``L = 2 log 2`` for
uninformative scores (``t = 0``). The released code computes ``L - 2 log 2``, with the same gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.losses.shared import Batch, Loss, in_float32
from cse.settings.objective import MutualInformationSettings


@in_float32
def local_global_information(local_BLD: torch.Tensor, global_BD: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
    """Return the negated estimate, a scalar in nats; rows of padding only are ignored.

    A batch of fewer than two sentences (perhaps the last of an epoch) has no negatives, so its loss is 0 with zero
    gradient, as for NT-Xent. Positives alone would only lengthen all vectors.
    """
    real_BL = mask_BL.bool()
    kept_B = real_BL.any(dim=1)
    local_BLD = local_BLD.where(real_BL[:, :, None], 0.0)  # masks instead of selections, whose size a GPU must tell
    global_ND = global_BD.where(kept_B[:, None], 0.0)
    score_BLN = local_BLD @ global_ND.T
    own_BLN = torch.eye(len(kept_B), dtype=torch.bool, device=real_BL.device)[:, None, :] & real_BL[:, :, None]
    other_BLN = real_BL[:, :, None] & kept_B & ~own_BLN
    # softplus(x) as -logsigmoid(-x): torch's softplus is rounded to x above 20
    loss = -_mean(F.logsigmoid(score_BLN), own_BLN) - _mean(F.logsigmoid(-score_BLN), other_BLN)
    return loss.where(kept_B.sum() > 1, 0.0)


def _mean(values: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the mean of the chosen values, 0 for none."""
    return values.where(chosen, 0.0).sum() / chosen.sum().clamp(min=1)


class MutualInformation(Loss[MutualInformationSettings]):
    """The estimate over the tokens and sentences of a batch, whose features are those of pooler ``cnn``."""

    def forward(self, batch: Batch) -> torch.Tensor:
        local, real = [], []
        for piece in batch.slices:
            missing = batch.longest - piece.ids_BL.shape[1]
            assert piece.tokens.local_BLD is not None  # noqa: S101 - kept if there are convolutions
            local.append(F.pad(piece.tokens.local_BLD, (0, 0, 0, missing)).float())
            real.append(F.pad(piece.mask_BL, (0, missing)))
        return local_global_information(batch.layout.join(local), batch.projected_XD, batch.layout.join(real))
