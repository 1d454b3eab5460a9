"""Term ``label_cosines`` of the loss."""

from __future__ import annotations

from cse.settings.terms import LabelTermSettings


class LabelCosinesSettings(LabelTermSettings):
    """Squared error of two texts' cosine, 1 within a label and 0 between two: needs data.view `categories` (SetFit)."""
