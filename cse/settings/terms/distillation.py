"""Term ``distillation`` of the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Temperature
from cse.settings.terms import TermSettings


class DistillationSettings(TermSettings):
    """Learn a teacher's similarities between the rows of a batch (Fang et al. 2021)."""

    copies = False

    temperature: Temperature = Field(0.05, description="Softmax temperature: the cosines of both are divided by it.")
    teacher: Literal["backbone", "folder", "both"] = Field(
        "backbone",
        description="`backbone`: the bare backbone, so that the model stays near it; `folder`: the models in "
        "`teacher_folder`; `both`: those and the backbone. Similarities of several are averaged.",
    )
    teacher_folder: str = Field(
        "data/raw/teacher",
        description="`teacher: folder`: a checkpoint or model with the backbone's tokenizer, or a folder of several; "
        "the pipeline retrains when it changes.",
    )

    @property
    def reads_folder(self) -> bool:
        """Whether the teachers are models in a folder."""
        return self.weight > 0 and self.teacher != "backbone"
