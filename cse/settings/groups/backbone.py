"""Group ``backbone``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, Positive


class BackboneSettings(Group):
    """The pretrained language model under the prompts."""

    name: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        description="Hub id or local folder of a BERT or RoBERTa model, or a text file of word vectors (GloVe).",
    )
    revision: str = Field("main", description="Branch, tag or commit on the hub; ignored for a local folder.")
    family: Literal["bert", "roberta"] | None = Field(
        None, description="Family that a preset was made for; another one is refused. null: any."
    )
    word_dimension: Positive | None = Field(
        None, description="Width that a file of word vectors must have; null: whatever its first line has."
    )
