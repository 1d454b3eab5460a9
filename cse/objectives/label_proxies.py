r"""Softmax over a trained vector per label (normalised softmax: Zhai and Wu 2019, Qian et al. 2019).

With ``p_c`` the proxy of label ``c``, ``y_i`` the label of row ``i`` and cosines divided by a temperature ``t``::

    L = mean_i -log( exp(cos(z_i, p_{y_i}) / t) / sum_c exp(cos(z_i, p_c) / t) )

Every label is a negative in every batch, which pairs from a batch cannot have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cse.objectives.precision import in_float32

UNLABELLED = -1


@in_float32
def label_proxies(
    z_BD: torch.Tensor, proxy_CD: torch.Tensor, label_B: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Return the mean cross-entropy over the rows with a label, a scalar in nats; 0 where none has one.

    Args:
        proxy_CD: one vector per label, of any length.
        label_B: number of each row's label, int64; ``UNLABELLED`` for none.
    """
    logits_BC = F.normalize(z_BD, dim=1) @ F.normalize(proxy_CD, dim=1).T / temperature
    total = F.cross_entropy(logits_BC, label_B, ignore_index=UNLABELLED, reduction="sum")
    return total / (label_B != UNLABELLED).sum().clamp(min=1)
