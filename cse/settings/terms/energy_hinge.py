"""Term ``energy_hinge`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative
from cse.settings.terms import TermSettings


class EnergyHingeSettings(TermSettings):
    """Energy-based hinge loss on raw cosines (PromCSE equation 11); needs triplets."""

    views = ("triplets",)
    rows = "hard negatives"

    weight: NonNegative = Field(10.0, description="Weight of this term in the loss; 0 disables it.")
    margin: float = Field(
        0.2,
        ge=0.0,
        le=2.0,
        description="Margin by which the cosine of the positive must exceed that of every negative.",
    )
