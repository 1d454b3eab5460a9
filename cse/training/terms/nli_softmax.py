"""SBERT's classifier over pairs with an NLI label."""

from __future__ import annotations

import torch
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.nli_softmax import nli_softmax, pair_features
from cse.training.batch import Batch
from cse.training.terms.term import Term


class NliSoftmax(Term):
    """Classify entailment, neutral and contradiction from two embeddings (SBERT, Reimers and Gurevych 2019)."""

    def __init__(self, encoder: SentenceEncoder, *, weight: float) -> None:
        super().__init__(encoder, weight=weight)
        self.classify = nn.Linear(3 * encoder.backbone.dimension, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean cross-entropy of the labels."""
        first_BD, second_BD = batch.views
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this term only with labelled rows
        return nli_softmax(self.classify(pair_features(first_BD, second_BD)), batch.labels_B)
