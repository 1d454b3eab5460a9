"""A trained vector per label, to which the texts of the label are drawn."""

from __future__ import annotations

import torch
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.label_proxies import label_proxies
from cse.training.batch import Batch
from cse.training.terms.term import Term


class LabelProxies(Term):
    """Normalised softmax over the labels of the main source."""

    def __init__(
        self, encoder: SentenceEncoder, labels: int, *, weight: float, temperature: float, learning_rate: float
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.temperature, self.learning_rate = temperature, learning_rate
        width = encoder.backbone.dimension
        self.proxies = nn.Parameter(torch.randn(labels, width) / width**0.5)

    def rates(self) -> dict[str, float]:
        """Return the learning rate of the proxies."""
        return {"proxies": self.learning_rate}

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean cross-entropy over both texts of each pair."""
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this term only with labelled texts
        z_BD = torch.cat(batch.views[:2])
        return label_proxies(z_BD, self.proxies, batch.labels_B.repeat(2), temperature=self.temperature)
