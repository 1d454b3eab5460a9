"""Group ``template``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cse.settings.groups.group import SettingsGroup


class TemplateSettings(SettingsGroup):
    """Text template around the sentence, read at its mask (PromptBERT, SCPCSE) or its last token (PromptEOL)."""

    text: str | None = Field(
        None,
        description='Template, for instance `This sentence : "{sentence}" means {mask} .`, or, for a decoder with '
        '`pooler.kind: last`, `This sentence : "{sentence}" means in one word:"`; null: the bare sentence.',
    )
    second: str | None = Field(
        None, description="Template for the second copy of a sentence (PromptBERT's two views); null: same as `text`."
    )
    trained: bool = Field(
        False, description="Train one vector per template token, initialised from its word embedding (SCPCSE)."
    )
    denoise: Literal["none", "train_only", "always"] = Field(
        "none", description="Subtract the embedding of the empty template at the sentence's length (PromptBERT)."
    )
    end_with_period: bool = Field(
        False,
        description="At inference, append a period unless the sentence ends in a period, question mark or quote.",
    )

    @model_validator(mode="after")
    def _check(self) -> TemplateSettings:
        for name in ("text", "second"):
            template = getattr(self, name)
            if template is None:
                continue
            if template.count("{sentence}") != 1 or template.count("{mask}") > 1:
                raise ValueError(f"{name}: needs {{sentence}} once and {{mask}} at most once, found {template!r}")
            if "{mask}" in template and template.index("{mask}") < template.index("{sentence}"):
                raise ValueError(f"{name}: {{mask}} must come after {{sentence}}, found {template!r}")
            if self.text is not None and ("{mask}" in template) != self.masked:
                raise ValueError(f"{name}: both templates need {{mask}}, or neither; found {template!r}")
        if self.text is None:
            for name, value in (("second", self.second is not None), ("trained", self.trained)):
                if value:
                    raise ValueError(f"{name}: needs a template; give template.text")
        if self.denoise != "none" and not self.masked:
            raise ValueError("denoise: needs a template with {mask}; give template.text")
        return self

    @property
    def masked(self) -> bool:
        """Whether the embedding is the output at the template's mask."""
        return self.text is not None and "{mask}" in self.text
