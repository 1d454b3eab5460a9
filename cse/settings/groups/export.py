"""Group ``export``."""

from __future__ import annotations

from pydantic import Field

from cse.choices import Precision
from cse.settings.groups.group import SettingsGroup


class ExportSettings(SettingsGroup):
    """The ONNX bundle."""

    tolerance: float = Field(
        1e-5, gt=0.0, description="`fp32`: maximum allowed difference between ONNX and torch embeddings."
    )
    precision: Precision = Field(
        "fp32",
        description="Precision of the bundle's weights and matrix products: `fp16` for GPUs, `int8` for CPUs.",
    )
    score_loss: float = Field(
        0.3,
        ge=0.0,
        description="`fp16` and `int8`: points of Spearman * 100, on average over the evaluation tasks, that the "
        "bundle may lose to torch; without scored pairs, points of your own task's main measure, or two of its items.",
    )
    normalize: bool = Field(True, description="Whether the bundle normalises embeddings to unit length by default.")
