"""Term ``masked_lm`` of the loss."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative, Positive, Share
from cse.settings.terms import TermSettings


class MaskedLmSettings(TermSettings):
    """Auxiliary masked language modelling loss (DCPCSE); needs a backbone with an MLM head."""

    copies = False
    compares = False
    head = True

    weight: NonNegative = Field(0.0, description="Initial weight of this term in the loss; 0 disables it.")
    mask_share: Share = Field(
        0.15, description="Share of tokens to predict (80 % masked, 10 % random, 10 % unchanged)."
    )
    decay_rate: float = Field(
        0.95, gt=0.0, le=1.0, description="Factor by which the weight decays every `decay_steps` steps."
    )
    decay_steps: Positive = Field(
        100, description="Steps per decay by `decay_rate`; decay is continuous (real-valued exponent)."
    )
    train_head: bool = Field(
        False, description="Train the MLM head, untied from the word embeddings (released code); false: freeze it."
    )
