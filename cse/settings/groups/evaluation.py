"""Group ``evaluation``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.choices import Provider
from cse.settings.groups.group import Positive, SettingsGroup


class EvaluationSettings(SettingsGroup):
    """Evaluation on semantic textual similarity and other requested measures."""

    measures: list[Literal["sts", "cxc", "transfer", "retrieval", "space", "tasks"]] = Field(
        ["sts", "tasks"],
        min_length=1,
        description="What to measure, if the data for it exist: `sts`, `cxc` (CxC-STS), `transfer` (SentEval tasks), "
        "`retrieval`, `space` (alignment and uniformity), `tasks` (your own, `data.task_path`).",
    )
    device: Provider = Field(
        "auto", description="`auto`: the GPU if there is one, else the CPU; `openvino`: that for bundles, else the CPU."
    )
    batch_size: Positive | None = Field(
        None, description="Sentences per forward pass; null: 64, or on a GPU as many as hold 16,384 tokens."
    )
    compare_backbone: bool = Field(True, description="Also score the bare backbone for comparison.")
