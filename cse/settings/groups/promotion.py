"""Group ``promotion``."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import NonNegative, SettingsGroup


class PromotionSettings(SettingsGroup):
    """Model versions and stages, and the bar a new version must clear."""

    name: str = Field(
        "sentence-encoder",
        pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$",
        description="Model name in the registry; must match `artifacts` in dvc.yaml.",
    )
    stage: str = Field(
        "production", pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$", description="Stage assigned to a promoted model."
    )
    dev_tolerance: NonNegative = Field(
        0.5,
        description="Points of the dev score (Spearman * 100, or the dev task's measure) by which a new model may fall "
        "below the promoted one.",
    )
    significant: bool = Field(
        False,
        description="Refuse such a fall only if it is more than chance: if the 95 % interval of the difference, from a "
        "paired bootstrap over the dev items, lies below 0.",
    )
