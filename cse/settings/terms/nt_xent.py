"""Term ``nt_xent`` of the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import NonNegative, Share, Temperature
from cse.settings.terms import TermSettings


class NtXentSettings(TermSettings):
    """Contrastive cross-entropy (SimCSE equations 1 and 5)."""

    weight: NonNegative = Field(1.0, description="Weight of this term in the loss; 0 disables it.")
    temperature: Temperature = Field(0.05, description="Softmax temperature: cosines are divided by it.")
    hard_negative_weight: float = Field(
        0.0, description="Added to the logit of each row's own hard negative (log of its weight)."
    )
    two_views: bool = Field(
        False, description="Symmetric loss with negatives from both copies, as in SimCLR (ConSERT, Mirror-BERT)."
    )
    queue: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Extra negatives: number of past embeddings to keep from a momentum encoder (ESimCSE); 0: none.",
    )
    momentum: Share = Field(
        0.995, description="`queue`: share of its own weights the momentum encoder keeps at each update."
    )
    queue_projector: Literal["following", "current"] = Field(
        "following",
        description="`queue`: projector of the momentum encoder: its own, which follows the trained one "
        "(`following`), or the trained one itself (`current`, ESimCSE's released code).",
    )
