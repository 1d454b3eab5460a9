"""Term ``nli_softmax`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative
from cse.settings.terms import TermSettings


class NliSoftmaxSettings(TermSettings):
    """SBERT: classify entailment, neutral, contradiction; needs data.view `labelled` (Reimers and Gurevych 2019)."""

    views = ("labelled",)
    rows = "labels"

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss; 0 disables it.")

    @property
    def least_rows(self) -> int:
        """One: the term does not contrast rows."""
        return 1
