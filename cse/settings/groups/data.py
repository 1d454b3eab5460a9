"""Group ``data``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cse.settings.groups.group import Group, Positive

VIEW_WIDTH = {"sentences": 1, "pairs": 2, "triplets": 3, "labelled": 3}


class DataSettings(Group):
    """Where text comes from and what ``prepare`` makes of it."""

    source: Literal["sample", "files", "hub"] = Field(
        "sample", description="`sample` is generated, `files` reads the paths below, `hub` downloads."
    )
    view: Literal["sentences", "pairs", "triplets", "labelled"] = Field(
        "triplets",
        description="What a training row is: a sentence (its copy is the positive), a pair, a triplet, or two "
        "sentences with an NLI label (entailment, neutral, contradiction).",
    )
    train_path: str = Field(
        "data/raw/train", description="`files`: a txt, csv, tsv, jsonl or parquet file, or a folder that holds one."
    )
    dev_path: str = Field(
        "data/raw/dev", description="`files`: scored pairs for checkpoint selection; an empty folder means STS-B dev."
    )
    evaluation_path: str = Field(
        "data/raw/evaluation", description="`files` and `hub`: SentEval's `downstream` folder, or scored pairs."
    )
    cxc_path: str = Field(
        "data/raw/cxc", description="`files` and `hub`: CSV of CxC-STS with its captions, or a folder that may hold it."
    )
    columns: list[str] | None = Field(
        None, description="Names of the columns to read, in the order of the view; null: by their usual names."
    )
    encoding: str = Field("utf-8", description="Encoding of text files.")
    score_range: list[float] = Field([0.0, 5.0], description="Lowest and highest gold score of the user's own pairs.")
    hub_id: str = Field("princeton-nlp/datasets-for-simcse", description="`hub`: id of the data set.")
    hub_file: str | None = Field(
        "nli_for_simcse.csv", description="`hub`: file inside the data set's repository; null: its default split."
    )
    hub_revision: str = Field("main", description="`hub`: branch, tag or commit.")
    hub_split: str = Field("train", description="`hub`: split, where no file is named.")
    max_rows: Positive | None = Field(
        None, description="Rows to keep, drawn by data.seed from all that cleaning leaves; null: all."
    )
    max_words: Positive = Field(
        1000, description="Sentences with more words, or more than 100,000 characters, are dropped and counted."
    )
    drop_duplicates: bool = Field(True, description="Drop rows that occurred before (same text after trimming).")
    drop_evaluation_overlap: bool = Field(
        True, description="Drop training rows with a sentence of the evaluation data (case and punctuation ignored)."
    )
    sample_rows: Positive = Field(3000, le=10_000_000, description="`sample`: rows to generate.")
    seed: int = Field(42, ge=0, description="Seed of the generated text, and of the draw of max_rows.")

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range: give two numbers, the lower first")
        if self.columns is not None and len(self.columns) != VIEW_WIDTH[self.view]:
            raise ValueError(
                f"columns: view {self.view!r} needs {VIEW_WIDTH[self.view]} column names, {len(self.columns)} given"
            )
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns: one column cannot stand for two, found {', '.join(self.columns)}")
        if self.encoding != "utf-8":
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ValueError(f"encoding: {self.encoding!r} is not an encoding that Python knows") from None
        return self
