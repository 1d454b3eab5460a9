"""Term ``label_proxies`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import Temperature
from cse.settings.terms import LabelTermSettings


class LabelProxiesSettings(LabelTermSettings):
    """A trained vector per label, the right one nearest: needs data.view `categories` (Zhai and Wu 2019)."""

    temperature: Temperature = Field(0.1, description="Softmax temperature: cosines are divided by it.")
    learning_rate: float = Field(0.01, gt=0.0, description="Learning rate of the labels' vectors.")

    @property
    def least_rows(self) -> int:
        """One: the term does not contrast rows."""
        return 1
