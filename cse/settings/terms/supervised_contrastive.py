"""Term ``supervised_contrastive`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import Temperature
from cse.settings.terms import LabelTermSettings


class SupervisedContrastiveSettings(LabelTermSettings):
    """Every text of the label in the batch is a positive: needs data.view `categories` (Khosla et al. 2020)."""

    temperature: Temperature = Field(0.1, description="Softmax temperature: cosines are divided by it.")
