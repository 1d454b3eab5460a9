r"""Softmax over a trained vector per label (normalised softmax: Zhai and Wu 2019, Qian et al. 2019).

With ``p_c`` the proxy of label ``c``, ``y_i`` the label of row ``i`` and cosines divided by a temperature ``t``::

    L = mean_i -log( exp(cos(z_i, p_{y_i}) / t) / sum_c exp(cos(z_i, p_c) / t) )

Every label is a negative in every batch, which pairs from a batch cannot have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cse.losses.shared import UNLABELLED, Batch, Loss, cosines, in_float32
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import LabelProxiesSettings


@in_float32
def label_proxies(
    z_BD: torch.Tensor, proxy_CD: torch.Tensor, label_B: torch.Tensor, *, temperature: float
) -> torch.Tensor:
    """Return the mean cross-entropy over the rows with a label, a scalar in nats; 0 where none has one."""
    logits_BC = cosines(z_BD, proxy_CD) / temperature
    total = F.cross_entropy(logits_BC, label_B, ignore_index=UNLABELLED, reduction="sum")
    return total / (label_B != UNLABELLED).sum().clamp(min=1)


class LabelProxies(Loss[LabelProxiesSettings]):
    """The loss over both texts of each pair."""

    temperature = 0.1
    learning_rate = 0.01  # of the labels' vectors

    def __init__(self, encoder: SentenceEncoder, settings: LabelProxiesSettings, labels: int) -> None:
        super().__init__(encoder, settings)
        width = encoder.backbone.dimension
        self.proxies = nn.Parameter(torch.randn(labels, width) / width**0.5)

    def rates(self) -> dict[str, float]:
        return {"proxies": self.learning_rate}

    def forward(self, batch: Batch) -> torch.Tensor:
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this loss only with labelled texts
        z_BD, label_B = torch.cat(batch.views[:2]), batch.labels_B.repeat(2)
        return label_proxies(z_BD, self.proxies, label_B, temperature=self.temperature)
