"""Group ``mine``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import SettingsGroup


class MineSettings(SettingsGroup):
    """Pairs and hard negatives, mined with the bare backbone before training."""

    neighbours: int = Field(
        0,
        ge=0,
        le=1000,
        description="Pairs from plain sentences: every two that are among each other's so many nearest become a pair; "
        "0: none.",
    )
    negatives: Literal[0, 1] = Field(
        0, description="Hard negatives per pair: 1 turns prepared pairs into triplets for training; 0: none are mined."
    )
    margin: float = Field(
        0.95,
        gt=0.0,
        le=1.0,
        description="A text whose cosine to the anchor is above this share of the positive's is taken for a false "
        "negative and skipped (NV-Retriever's TopK-PercPos).",
    )

    @property
    def wanted(self) -> bool:
        """Whether anything is mined."""
        return self.negatives > 0 or self.neighbours > 0

    def view(self, rows: str) -> str:
        """Return the view of the rows for training, given the view of the prepared rows."""
        return "triplets" if self.negatives else "pairs" if self.neighbours else rows
