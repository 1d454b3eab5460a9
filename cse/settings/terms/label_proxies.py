"""Term ``label_proxies`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative, Temperature
from cse.settings.terms import TermSettings


class LabelProxiesSettings(TermSettings):
    """A trained vector per label, the right one nearest: needs data.view `categories` (Zhai and Wu 2019)."""

    views = ("pairs", "triplets")
    rows = "labelled texts (data.view: categories)"
    labels = True

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss; 0 disables it.")
    temperature: Temperature = Field(0.1, description="Softmax temperature: cosines are divided by it.")
    learning_rate: float = Field(0.01, gt=0.0, description="Learning rate of the labels' vectors.")

    @property
    def least_rows(self) -> int:
        """One: the term does not contrast rows."""
        return 1
