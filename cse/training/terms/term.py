"""What every term of the loss is."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.training.batch import Batch


class Term(nn.Module, ABC):
    """A term of the loss; owns what only training needs: heads, copies, a queue.

    Args:
        encoder: the encoder that is trained; its weights are not the term's.
        weight: of the term in the loss.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, or torch would count it as a part of the term
        self._weight = weight

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder that is trained."""
        return self._encoder[0]

    def weight(self, step: int) -> float:
        """Return the weight of the term after ``step`` updates."""
        return self._weight

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each own weight that does not take the run's, by name."""
        return {}

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the unweighted term, a scalar."""

    def after_update(self, batch: Batch) -> None:
        """Follow the encoder, whose weights were just updated with this batch."""
