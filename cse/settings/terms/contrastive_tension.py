"""Term ``contrastive_tension`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.terms import TermSettings


class ContrastiveTensionSettings(TermSettings):
    """Contrastive Tension: two encoder copies, dot products, 1 positive and 7 negatives (Carlsson et al. 2021)."""

    views = ("sentences",)
    rows = "single sentences"
    copies = False

    group: int = Field(
        8, ge=2, description="Rows per group of one positive and its negatives; `train.batch_size` must be a multiple."
    )

    @property
    def least_rows(self) -> int:
        """One whole group."""
        return self.group
