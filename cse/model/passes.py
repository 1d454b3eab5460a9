"""What enters and leaves a pass through the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from cse.model.attention import Prefix


class Alteration(Protocol):
    """Changes that augmentation makes between word vectors and the first layer."""

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return the position ids to use, ``(B, L)``."""

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer, ``(B, L, D)``."""


@dataclass(frozen=True)
class Constants:
    """Values that do not depend on the sentence.

    Attributes:
        prefix: keys and values of a deep prompt per layer, or None.
        noise_TND: output of each template without a sentence, indexed by sentence length ``n``; or None.
    """

    prefix: Prefix | None = None
    noise_TND: torch.Tensor | None = None


@dataclass(frozen=True)
class TokenBatch:
    """Outputs for a slice of rows.

    Attributes:
        states: the last layer's output ``(B, L, D)`` without prompt columns, preceded by all others if pooling needs
            them.
        local_BLD: token features to pool (of the last layer or the convolutions); None if not kept.
        pooled_BD: one vector per row.
        noise_BD: vectors to subtract from it, or None.
    """

    states: list[torch.Tensor]
    local_BLD: torch.Tensor | None
    pooled_BD: torch.Tensor
    noise_BD: torch.Tensor | None
