"""Term ``self_guided`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative, Positive, Temperature
from cse.settings.terms import TermSettings


class SelfGuidedSettings(TermSettings):
    """SG-OPT: self-guidance by the layers of a frozen clone (Kim et al. 2021)."""

    copies = False

    temperature: Temperature = Field(0.01, description="Softmax temperature: cosines are divided by it.")
    projection: Positive = Field(4096, le=65_536, description="Output width of the projection head.")
    regularizer: NonNegative = Field(
        0.1, description="Weight of the regulariser: squared distance to the initial weights."
    )
