"""Base class of the loss terms."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from cse.model.sentence_encoder import SentenceEncoder
from cse.training.batch import Batch


class Term(nn.Module, ABC):
    """A loss term; owns training-only parts such as heads, copies and a queue.

    Args:
        encoder: the encoder being trained; its weights do not belong to the term.
    """

    def __init__(self, encoder: SentenceEncoder, *, weight: float) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, so that torch does not register it as a submodule
        self._weight = weight

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder being trained."""
        return self._encoder[0]

    def weight(self, step: int, own: float | None = None) -> float:
        """Return the weight of this term after ``step`` updates; a source's own replaces the one of the settings."""
        return self._weight if own is None else own

    @property
    def from_tensors(self) -> bool:
        """Whether it follows from a batch's embeddings and labels alone and keeps nothing, see ``Captured``."""
        return False

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each of its weights that does not use the run's, by name."""
        return {}

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the unweighted term, a scalar."""

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
