"""Group ``template``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cse.settings.groups.group import Group


class TemplateSettings(Group):
    """Words around the sentence, read out at the mask (PromptBERT, SCPCSE)."""

    text: str | None = Field(
        None, description='For instance `This sentence : "{sentence}" means {mask} .`; null: the bare sentence.'
    )
    second: str | None = Field(
        None, description="Template of the second copy of a sentence (PromptBERT's two views); null: the same."
    )
    trained: bool = Field(
        False, description="Train a vector for each piece of the template, from its word vector (SCPCSE)."
    )
    denoise: Literal["none", "train_only", "always"] = Field(
        "none", description="Subtract what the template gives without the sentence, at the sentence's length."
    )
    end_with_period: bool = Field(
        False,
        description="At inference append a period to a sentence that ends in neither period, question mark nor quote.",
    )

    @model_validator(mode="after")
    def _check(self) -> TemplateSettings:
        for name in ("text", "second"):
            template = getattr(self, name)
            for slot in ("{sentence}", "{mask}"):
                if template is not None and template.count(slot) != 1:
                    raise ValueError(f"{name}: needs {slot} exactly once, found {template!r}")
            if template is not None and template.index("{mask}") < template.index("{sentence}"):
                raise ValueError(f"{name}: {{mask}} must stand after {{sentence}}, found {template!r}")
        if self.text is None:
            for name, value in (("second", self.second is not None), ("trained", self.trained)):
                if value:
                    raise ValueError(f"{name}: there is no template; give template.text")
            if self.denoise != "none":
                raise ValueError("denoise: there is no template; give template.text")
        return self
