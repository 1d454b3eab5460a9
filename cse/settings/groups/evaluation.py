"""Group ``evaluation``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, Positive


class EvaluationSettings(Group):
    """Scoring, on semantic textual similarity and whatever else is asked for."""

    measures: list[Literal["sts", "cxc", "transfer", "retrieval", "space"]] = Field(
        ["sts"],
        min_length=1,
        description="What to measure, as far as its data are there: `sts`, `cxc` (CxC-STS), `transfer` tasks, "
        "`retrieval`, `space` (alignment and uniformity).",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU where there is one.")
    batch_size: Positive = Field(64, description="Sentences per forward pass.")
    compare_backbone: bool = Field(True, description="Score the bare backbone beside the checkpoint.")
