"""Group ``template``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cse.settings.groups.group import SettingsGroup


class TemplateSettings(SettingsGroup):
    """Text template around the sentence; the embedding is read at its mask (PromptBERT, SCPCSE)."""

    text: str | None = Field(
        None,
        description='Template, for instance `This sentence : "{sentence}" means {mask} .`; null: the bare sentence.',
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
            for slot in ("{sentence}", "{mask}"):
                if template is not None and template.count(slot) != 1:
                    raise ValueError(f"{name}: needs {slot} exactly once, found {template!r}")
            if template is not None and template.index("{mask}") < template.index("{sentence}"):
                raise ValueError(f"{name}: {{mask}} must come after {{sentence}}, found {template!r}")
        if self.text is None:
            for name, value in (("second", self.second is not None), ("trained", self.trained)):
                if value:
                    raise ValueError(f"{name}: needs a template; give template.text")
            if self.denoise != "none":
                raise ValueError("denoise: needs a template; give template.text")
        return self
