"""Group ``post``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, Positive


class PostSettings(Group):
    """Post-processing fitted on the training sentences; stored with the encoder and exported with it."""

    kind: Literal["none", "whitening", "flow"] = Field(
        "none", description="`whitening` (BERT-whitening) or `flow` (BERT-flow)."
    )
    dimension: Positive | None = Field(None, description="`whitening`: leading dimensions to keep; null: all.")
    sentences: Positive = Field(100_000, description="Most distinct training sentences to fit on, evenly spaced.")
    max_length: int = Field(
        64, ge=3, le=100_000, description="Tokens per sentence in fitting, special tokens included."
    )
    learning_rate: float = Field(1e-3, gt=0.0, description="`flow`: learning rate of Adam.")
    batch_size: int = Field(32, ge=2, description="`flow`: sentences per step.")
    epochs: Positive = Field(1, description="`flow`: passes over the sentences.")
    seed: int = Field(42, ge=0, description="`flow`: seed of initialisation and order.")
