"""Term ``collection`` of the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import NonNegative, Positive, Share, Temperature
from cse.settings.terms import TermSettings


class CollectionSettings(TermSettings):
    """Rank all documents as a teacher does: for queries, by which `post.kind: query_map` is fitted, too."""

    views = ("pairs",)
    rows = "pairs of a query and its document"
    copies = False

    temperature: Temperature = Field(0.03, description="Softmax temperature: cosines are divided by it.")
    words: NonNegative = Field(
        0.5,
        description="Weight of words (BM25) in the teacher beside the bare backbone's cosines; both have a standard "
        "deviation of 1 over the documents. 0: cosines alone.",
    )
    teacher: Literal["backbone", "folder"] = Field(
        "backbone", description="Whose cosines teach: the bare backbone's, or those of the model in `teacher_folder`."
    )
    teacher_folder: str = Field(
        "data/raw/teacher",
        description="`teacher: folder`: a checkpoint or model; the pipeline retrains when it changes.",
    )
    teacher_temperature: Temperature = Field(
        0.5, le=10.0, description="Softmax temperature of the teacher's scores, which have a standard deviation of 1."
    )
    candidates: Positive = Field(200, description="Best documents of the teacher that get a share of its softmax.")
    most_documents: Positive = Field(
        20_000,
        description="Up to so many documents, a step ranks all of them; of more, the `candidates` of each of its "
        "queries and half as many at random as this, which stand for the rest.",
    )
    own_share: Share = Field(
        0.9,
        description="Pairs: share that goes to the pair's own document, the rest to the teacher's. Of `data.pairs: "
        "[stand_ins]` a text's own document is left out instead.",
    )

    @property
    def reads_folder(self) -> bool:
        """Whether the teacher is a model in a folder."""
        return self.teacher == "folder"

    @property
    def least_rows(self) -> int:
        """One: the documents are contrasted, not the rows."""
        return 1
