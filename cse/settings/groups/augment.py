"""Group ``augment``."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import SettingsGroup, Share


class AugmentSettings(SettingsGroup):
    """How the two copies of a sentence are made to differ, besides dropout."""

    repeat_words: Share = Field(
        0.0, description="Maximum share of word pieces to repeat in the second copy (ESimCSE); 0: none."
    )
    mask_span: int = Field(
        0,
        ge=0,
        le=100_000,
        description="Length in characters of the random span to mask in the second copy (Mirror-BERT); 0: none.",
    )
    shuffle_tokens: bool = Field(False, description="Shuffle the token positions of the first copy (ConSERT).")
    cut_features: Share = Field(
        0.0, description="Share of embedding features to zero in the second copy (ConSERT); 0: none."
    )
    dropout: bool = Field(True, description="Use the backbone's dropout in training; ConSERT turns it off.")
    attention_dropout: Share | None = Field(
        None,
        description="Dropout of the backbone's attention in training; null: its own. Decoders have none, so that two "
        "copies of a sentence would be equal (LLM2Vec takes 0.3).",
    )
