"""Group ``augment``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, Share


class AugmentSettings(Group):
    """What makes the two copies of a sentence differ, beside dropout."""

    repeat_words: Share = Field(
        0.0, description="Largest share of word pieces that are repeated in the second copy (ESimCSE); 0: none."
    )
    repeat_rule: Literal["paper", "released"] = Field(
        "paper",
        description="How many pieces are repeated: up to that share, 2 at least (paper), or fewer than that share and "
        "fewer than 10, special tokens counted in the length (released code).",
    )
    mask_span: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Characters of the second copy that are replaced by a mask (Mirror-BERT); 0: none.",
    )
    shuffle_tokens: bool = Field(False, description="Shuffle the positions of the first copy's tokens (ConSERT).")
    shuffle_special: bool = Field(
        False, description="`shuffle_tokens`: special tokens change places too, as in ConSERT's released code."
    )
    cut_features: Share = Field(
        0.0, description="Share of embedding features that are set to 0 in the second copy (ConSERT); 0: none."
    )
    dropout: bool = Field(True, description="The backbone's dropout in training; false: off (ConSERT).")
