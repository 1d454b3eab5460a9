"""Group ``promotion``."""

from __future__ import annotations

from pydantic import Field

from cse.settings.groups.group import Group, NonNegative


class PromotionSettings(Group):
    """Versions and stages of models, and what a new one has to hold up to."""

    name: str = Field(
        "sentence-encoder",
        pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$",
        description="Name of the model in the registry; as under `artifacts` in dvc.yaml.",
    )
    stage: str = Field(
        "production", pattern=r"^[a-z][a-z0-9-]*[a-z0-9]$", description="Stage that a promoted model takes."
    )
    dev_tolerance: NonNegative = Field(
        0.5, description="Points of dev Spearman * 100 by which a promoted model may be worse than the one before."
    )
