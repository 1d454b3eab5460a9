"""Term ``matryoshka`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import Positive, Temperature
from cse.settings.terms import TermSettings


class MatryoshkaSettings(TermSettings):
    """NT-Xent on the first numbers of each vector, so that vectors may be cut (Kusupati et al. 2022)."""

    widths: list[Positive] = Field(
        [256, 128, 64],
        min_length=1,
        description="Numbers of dimensions to train for, each below the embedding's; `encode` then offers them.",
    )
    temperature: Temperature = Field(0.05, description="Softmax temperature: cosines are divided by it.")
    hard_negative_weight: float = Field(
        0.0, description="Added to the logit of each row's own hard negative (log of its weight)."
    )
