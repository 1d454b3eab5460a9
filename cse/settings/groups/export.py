"""Group ``export``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, Positive


class ExportSettings(Group):
    """The ONNX bundle."""

    provider: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the parity check runs; `cuda` fails when the GPU does not attach."
    )
    tolerance: float = Field(1e-5, gt=0.0, description="Largest difference allowed between ONNX and torch.")
    normalize: bool = Field(True, description="Whether the bundle's embeddings have unit length by default.")
    sentences: Positive = Field(256, description="Sentences of the evaluation data used in the parity check.")
