"""Groups ``data`` and ``mine``: where the rows come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from cse.settings.group import NonNegative, Positive, SettingsGroup

View = Literal["sentences", "pairs", "triplets", "labelled", "documents", "categories"]
Pairs = Literal["stand_ins", "question_answer", "sentences"]
VIEW_WIDTH = {"sentences": 1, "pairs": 2, "triplets": 3, "labelled": 3, "documents": 2, "categories": 2}


class SourceSettings(SettingsGroup):
    """A further source of training rows; documents and categories are read as group `data` says."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)
    """Its name in files, reports and errors: lower-case letters, digits and dashes."""
    path: str
    """As `data.train_path`; `dvc repro` watches `data/raw/more`."""
    view: View
    """As `data.view`."""
    pairs: Pairs = "stand_ins"
    """As `data.pairs`."""
    weight: float = Field(1.0, gt=0.0)
    """Batches of it for each batch of the main source."""
    columns: list[str] | None = None
    """As `data.columns`."""
    max_rows: Positive | None = None
    """As `data.max_rows`."""
    terms: dict[str, NonNegative] | None = None
    """Weights that replace those of terms of `objective` on its batches, such as `{energy_hinge: 0}`; 0 switches a term
    off. null: none."""

    @model_validator(mode="after")
    def _check(self) -> SourceSettings:
        check_reading(self.view, self.columns)
        return self


class DataSettings(SettingsGroup):
    """Where the text comes from and how ``prepare`` processes it."""

    source: Literal["sample", "files", "hub"] = "sample"
    """`sample` comes with the package, `files` reads the paths below, `hub` downloads a data set."""
    view: View = "triplets"
    """What one row of the source holds: a sentence (a copy of it is the positive), a pair, a triplet, two sentences
    with an NLI label (`labelled`: entailment, neutral, contradiction), or what rows are made from: `documents` (see
    `pairs`) or `categories`, texts with any label (pairs within a label)."""
    pairs: Pairs = "stand_ins"
    """`documents`: the training rows. `stand_ins`: the title and sentences in place of queries, each with its whole
    document (see `post.kind: query_map`); `question_answer`: columns `question` and `answer`, or a heading that asks
    and the text below; `sentences`: every sentence."""
    stand_ins: Positive = 5
    """`documents` with `pairs: stand_ins`: most rows of a document."""
    language: str = Field("en", pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$")
    """`documents`: language code, to find sentence ends."""
    train_path: str = "data/raw/train"
    """`files`: a txt, csv, tsv, jsonl, json or parquet file, or a folder with one such file; for `documents` also a
    Markdown or HTML file, a folder of such and of txt files, or a folder of BEIR."""
    dev_path: str = "data/raw/dev"
    """`files`: scored pairs or another task of your own for checkpoint selection; if the folder is empty, STS-B dev is
    used."""
    dev: Literal["stsb", "own", "none"] = "stsb"
    """`files` and `hub`: what selects checkpoints where neither `dev_path` nor `hold_out` gives it: `stsb`: STS-B dev;
    `own`: nothing; `none`: nothing either, and the rows that `hold_out` draws to select are trained on: for a last
    training with what they chose."""
    evaluation_path: str = "data/raw/evaluation"
    """`files` and `hub`: SentEval's `downstream` folder, or your own scored pairs."""
    cxc_path: str = "data/raw/cxc"
    """`files` and `hub`: CxC-STS CSV including the captions, or a folder that may contain it."""
    task_path: str = "data/raw/task"
    """`files` and `hub`: your own task, or a folder of several: pairs, triplets, labelled texts or a retrieval
    collection."""
    columns: list[str] | None = None
    """Columns to read, in the order of `view` (`pairs`: with or without their label); null: find them by their usual
    names."""
    encoding: str = "utf-8"
    """Character encoding of text files."""
    score_range: list[float] = Field([0.0, 5.0])
    """Lowest and highest score of pairs; those at four fifths or above are positives in view `pairs`."""
    hub_id: str = "princeton-nlp/datasets-for-simcse"
    """`hub`: data set id."""
    hub_file: str = "nli_for_simcse.csv"
    """`hub`: file in the data set repository."""
    hub_revision: str = "main"
    """`hub`: branch, tag or commit."""
    hold_out: float = Field(0.0, ge=0.0, le=0.5)
    """`files`: about this share of the rows (of whole documents; of the texts of each label) is held out, drawn by a
    hash of the text and halved until it is 1,000 rows at most, as the task that selects checkpoints where `dev_path`
    has none, and as much again to measure where `task_path` has none; 0: none. Held-out pairs are a proxy of what you
    want: prefer the two paths."""
    max_rows: Positive | None = None
    """Rows to keep, drawn at random (`data.seed`) after cleaning; null: all."""
    max_words: Positive = 1000
    """Maximum words per sentence; rows with a longer one, or one over 100,000 characters, are dropped and counted."""
    drop: list[Literal["duplicates", "evaluation_overlap"]] = Field(["duplicates", "evaluation_overlap"])
    """What to drop: `duplicates`: repeated rows (same text after trimming); `evaluation_overlap`: training rows
    containing an evaluation sentence (ignoring case and punctuation)."""
    more: list[SourceSettings] = Field([])
    """`files`: further sources to train on besides, such as `[{name: nli, path: data/raw/more/nli.csv, view:
    triplets}]`. Cleaned like the main one; `hold_out` and group `mine` leave them alone."""
    label_name_rows: bool = False
    """`categories`: train on the name of each label, in words, as one more text of it."""
    seed: int = Field(42, ge=0)
    """Seed for drawing `max_rows`, `hold_out` and the pairs of `categories`."""

    @property
    def grouped(self) -> bool:
        """Whether rows keep the label or document they are made from."""
        return self.view in ("documents", "categories")

    @property
    def made_from(self) -> str | None:
        """What rows are made from that are not in the source as they are."""
        if self.pairs == "stand_ins" and self.view == "documents":
            return "stand_ins"
        return self.view if self.grouped else None

    @property
    def rows(self) -> str:
        """View of the prepared rows."""
        if self.view == "documents" and self.pairs == "sentences":
            return "sentences"
        return "pairs" if self.grouped else self.view

    @property
    def more_terms(self) -> list[dict[str, float]]:
        """For each further source, the weights that replace those of terms."""
        return [source.terms or {} for source in self.more]

    @property
    def more_in_training(self) -> list[dict[str, Any]]:
        """What a training reads of the further sources, as JSON values; the rest made their rows."""
        read = {"name", "view", "weight", "terms"}
        return [source.model_dump(mode="json", include=read) for source in self.more]

    def of(self, source: SourceSettings) -> DataSettings:
        """Return the group as if a further source were the only one."""
        own = source.model_dump(include={"view", "pairs", "columns", "max_rows"})
        return self.model_copy(update={**own, "train_path": source.path, "hold_out": 0.0, "more": []})

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        if len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]:
            raise ValueError("score_range: give two numbers, lower first")
        if self.hold_out and (self.source != "files" or self.view == "labelled" or self.rows == "sentences"):
            what = f"source {self.source!r}" if self.source != "files" else f"view {self.view!r}"
            raise ValueError(f"hold_out: {what} has no pairs or labels of its own to hold out; set it to 0")
        check_reading(self.view, self.columns)
        names = [source.name for source in self.more]
        doubled = [name for place, name in enumerate(names) if name in names[:place]]
        if doubled:
            raise ValueError(f"more: {len(names)} sources, {doubled[0]!r} twice; give each its own name")
        if self.more and self.source != "files":
            raise ValueError(f"more: further sources need data.source: files, found {self.source!r}; set it to []")
        if self.encoding != "utf-8":
            try:
                "".encode(self.encoding)
            except LookupError:
                raise ValueError(f"encoding: {self.encoding!r} is not an encoding known to Python") from None
        return self


def check_reading(view: str, columns: Sequence[str] | None) -> None:
    """Refuse columns that a source cannot have."""
    label = view == "pairs" and columns is not None and len(columns) == 3
    if columns is not None and len(columns) != VIEW_WIDTH[view] and not label:
        raise ValueError(f"columns: view {view!r} needs {VIEW_WIDTH[view]} column names, {len(columns)} given")
    if columns is not None and len(set(columns)) < len(columns):
        raise ValueError(f"columns: name each column only once, found {', '.join(columns)}")


class MineSettings(SettingsGroup):
    """Pairs of plain sentences, which `prepare` finds with the bare backbone."""

    neighbours: int = Field(0, ge=0, le=1000)
    """Every two sentences that are among each other's so many nearest become a pair; 0: none."""

    def view(self, rows: str) -> str:
        """Return the view of the rows for training, given the view of the source's rows."""
        return "pairs" if self.neighbours else rows
