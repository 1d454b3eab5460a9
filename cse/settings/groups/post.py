"""Group ``post``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Positive, SettingsGroup


class PostSettings(SettingsGroup):
    """Post-processing fitted on training sentences, saved and exported with the encoder."""

    kind: Literal["none", "whitening", "discriminant", "linear", "query_map", "flow"] = Field(
        "none",
        description="`whitening` (BERT-whitening), `discriminant` (linear discriminant analysis of labelled texts), "
        "`linear` (the discriminant, trained on by the supervised contrastive loss), `query_map` (a matrix "
        "for queries alone, trained against all documents, see `objective.collection`), `flow` (BERT-flow) or `none`.",
    )
    dimension: Positive | None = Field(
        None,
        description="`whitening`, `discriminant`, `linear`: number of leading dimensions to keep; null: all (labels: "
        "one fewer than there are, at most the encoder's).",
    )
    shrinkage: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="`discriminant`, `linear`: share of a multiple of the identity in the covariance within labels; "
        "null: what ranks held-out texts best, from 0.01 to 0.6.",
    )
    sentences: Positive = Field(
        100_000, description="Maximum distinct training sentences to fit on, picked at even intervals."
    )
    max_length: int = Field(
        64, ge=3, le=100_000, description="Maximum tokens per sentence when fitting, special tokens included."
    )
