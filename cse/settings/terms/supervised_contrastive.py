"""Term ``supervised_contrastive`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative, Temperature
from cse.settings.terms import TermSettings


class SupervisedContrastiveSettings(TermSettings):
    """Every text of the label in the batch is a positive: needs data.view `categories` (Khosla et al. 2020)."""

    views = ("pairs", "triplets")
    rows = "labelled texts (data.view: categories)"
    labels = True

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss; 0 disables it.")
    temperature: Temperature = Field(0.1, description="Softmax temperature: cosines are divided by it.")
