"""Group ``backbone``."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import SettingsGroup


class BackboneSettings(SettingsGroup):
    """The pretrained language model under the prompts."""

    name: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        description="Hub id, folder or GGUF file of a language model (docs/backbones.md lists the families), or a "
        "text file of word vectors (GloVe).",
    )
    revision: str = Field("main", description="Hub branch, tag or commit; ignored for a local folder.")
    max_length: int | None = Field(
        None,
        ge=3,
        description="Maximum tokens per text, special tokens included; null: as the model's folder declares, else as "
        "many as it has positions.",
    )
    texts: dict[str, str] | None = Field(
        None,
        description="Task texts by role, which go before a text, for instance `{query: 'query: '}`; null: those that "
        "the model's folder declares.",
    )
