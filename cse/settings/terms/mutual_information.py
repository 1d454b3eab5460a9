"""Term ``mutual_information`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative
from cse.settings.terms import TermSettings


class MutualInformationSettings(TermSettings):
    """IS-BERT: mutual information between tokens and sentence; needs pooler.kind `cnn` (Zhang et al. 2020)."""

    copies = False

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss; 0 disables it.")
