"""Look at what the user has, and choose views, loss and held-out rows for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.documents import ANSWER, BODIES, CORPUS, FILES, QUESTION, read_documents
from cse.data.language import language_of
from cse.data.readers import USUAL_COLUMNS, check_exists, contents, data_files, find_data_file, read_rows
from cse.data.tables import TABLES, open_table
from cse.data.tasks.layout import is_beir, splits_of
from cse.errors import CseError

HELD_OUT = 0.1  # share of the rows that select the settings; as many are measured where there is no task
DOCUMENT_TOKENS = 128  # a passage of 60 words has about 90
_PAIRS_ONLY = {"objective.energy_hinge.weight": 0.0, "data.hold_out": HELD_OUT}

# labels ask for more than other rows: longer prompts, moved faster
_OF_LABELS = {
    "train.distinct_batches": True,
    "train.dev_measure": "MAP",
    "train.batch_size": 64,
    "train.learning_rate": 0.1,
    "prompt.length": 40,
}


@dataclass(frozen=True)
class Found:
    """What was found, and the settings that follow from it.

    Attributes:
        view: of the source.
        told: in words.
        settings: by dotted key, on top of the project's.
        language: ISO 639-1 code of the text's language; None if it has none that can be told.
    """

    view: str
    told: str
    settings: dict[str, Any]
    language: str | None


def look(source: Path | None, *, task: Path | None = None, labels: Path | None = None) -> Found:
    """Choose settings for a source, or for labelled texts.

    Args:
        source: file or folder of text.
        task: the user's own task, measured at the end and never trained on.
        labels: labelled texts to train on and, for their test part, to measure.

    Raises:
        CseError: nothing to train on, or columns that are those of nothing known.
    """
    settings: dict[str, Any] = {"data.source": "files"}
    if task is not None:
        check_exists(task, "the task")
        settings["data.task_path"] = str(task)
    if labels is not None:
        source, view = _reference(labels), "categories"
        if labels.is_dir():  # its other part is the task
            settings["data.task_path"] = str(labels)
        settings |= _PAIRS_ONLY | _OF_LABELS
    elif source is None:
        raise CseError("nothing to adapt to: name a file or folder of text, or labelled texts with --labels")
    else:
        view = view_of_source(source)
        settings |= _for_view(view)
        if view == "documents" and _answers(source):
            settings["data.pairs"] = ["question_answer"]
    language = language_of(_texts(source, view))
    if view == "documents" and language is not None:
        settings["data.language"] = language
    settings |= {"data.view": view, "data.train_path": str(source)}
    return Found(view, f"{source}: {_TOLD[view]}", settings, language)


def view_of_source(path: Path) -> str:
    """Return the view of a file or folder, by its layout and columns.

    A table of texts with labels counts as sentences: labels are read where they are asked for.

    Raises:
        CseError: no such path, or columns that are those of nothing known.
    """
    check_exists(path, "the source")
    if path.is_dir():
        if (path / CORPUS).is_file() or is_beir(path):
            return "documents"
        texts = [name for name in contents(path) if Path(name).suffix.lower() in FILES]
        tables = [file for file in data_files(path) if file.suffix.lower() in TABLES]
        if len(tables) != 1:
            if texts and not tables:
                return "documents" if len(texts) > 1 or Path(texts[0]).suffix.lower() != ".txt" else "sentences"
            raise CseError(f"{path}: {len(tables)} tables and {len(texts)} files of text; name one of them")
        path = tables[0]
    if path.suffix.lower() not in TABLES:
        return "documents" if path.suffix.lower() in FILES and path.suffix.lower() != ".txt" else "sentences"
    there = open_table(path).columns
    fits = [view for view in ("triplets", "pairs") if any(set(names) <= set(there) for names in USUAL_COLUMNS[view])]
    if fits:
        return fits[0]
    if ("title" in there and set(BODIES) & set(there)) or {QUESTION, ANSWER} <= set(there):
        return "documents"
    if any(set(names) <= set(there) for names in USUAL_COLUMNS["sentences"]):
        return "sentences"
    raise CseError(
        f"{path}: the columns {', '.join(there)} are not known; rename them to one of: title,text; question,answer; "
        "text; sent0,sent1; anchor,positive,negative; or prepare the rows yourself (docs/your-own-data.md)"
    )


def _for_view(view: str) -> dict[str, Any]:
    if view == "sentences":  # nothing of the same making can be held out
        return {"objective.energy_hinge.weight": 0.0, "mine.neighbours": 5, "data.stsb_dev": False}
    if view == "documents":
        return _PAIRS_ONLY | {"train.max_length": DOCUMENT_TOKENS, "train.distinct_batches": True}
    return {"data.hold_out": HELD_OUT} if view == "triplets" else _PAIRS_ONLY | {"train.distinct_batches": True}


def _texts(source: Path, view: str) -> Iterator[str]:
    """Yield the texts of a source as they stand there."""
    if view == "documents":
        for document in read_documents(source, questions=_answers(source)):
            yield document.title
            yield from (paragraph for section in document.sections for paragraph in section.paragraphs)
    else:
        for row in read_rows(find_data_file(source), view):
            yield from (text for text in row.texts if text)


def _answers(source: Path) -> bool:
    """Whether a source is a table of questions and answers."""
    return source.suffix.lower() in TABLES and {QUESTION, ANSWER} <= set(open_table(source).columns)


def _reference(labels: Path) -> Path:
    """Return the file of labelled texts to train on."""
    splits = splits_of(labels) if labels.is_dir() else None
    if splits is not None:
        return splits["train"]
    if labels.is_file():
        return labels
    raise CseError(f"{labels}: labelled texts are a file, or a folder with train.* and test.*")


_TOLD = {
    "categories": "labelled texts: pairs within a label, batches without two of one label",
    "sentences": "plain sentences: pairs of those that are among each other's five nearest",
    "documents": "documents: title and first passage, passages that follow each other",
    "pairs": "pairs",
    "triplets": "triplets with hard negatives",
}
