r"""Classification of sentence pairs (SBERT, Reimers and Gurevych 2019, section 3).

With ``u``, ``v`` the embeddings of the two sentences of a pair and ``W`` a trained ``(3, 3D)`` matrix::

    logits = W (u, v, |u - v|)
    L      = mean -log softmax(logits)[label]
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cse.losses.shared import Batch, Loss, in_float32
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import NliSoftmaxSettings


@in_float32
def pair_features(first_BD: torch.Tensor, second_BD: torch.Tensor) -> torch.Tensor:
    """Return ``(u, v, |u - v|)``, ``(B, 3D)``."""
    return torch.cat([first_BD, second_BD, (first_BD - second_BD).abs()], dim=-1)


@in_float32
def nli_softmax(logits_B3: torch.Tensor, label_B: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy, a scalar in nats."""
    return F.cross_entropy(logits_B3, label_B)


class NliSoftmax(Loss[NliSoftmaxSettings]):
    """The classifier of entailment, neutral and contradiction."""

    def __init__(self, encoder: SentenceEncoder, settings: NliSoftmaxSettings) -> None:
        super().__init__(encoder, settings)
        self.classify = nn.Linear(3 * encoder.backbone.dimension, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        first_BD, second_BD = batch.views
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this loss only with labelled rows
        return nli_softmax(self.classify(pair_features(first_BD, second_BD)), batch.labels_B)
