"""Look at what the user has, and choose views, loss and held-out rows for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.documents import BODIES, CORPUS, FILES
from cse.data.readers import USUAL_COLUMNS, check_exists, contents, data_files
from cse.data.tables import TABLES, open_table
from cse.data.tasks.layout import is_beir, splits_of
from cse.errors import CseError

HELD_OUT = 0.1  # share of the rows that select the settings
DOCUMENT_TOKENS = 128  # a passage of 60 words has about 90
_PAIRS_ONLY = {"objective.energy_hinge.weight": 0.0, "data.hold_out": HELD_OUT}
_OTHERS = ("sentences", "pairs", "triplets", "documents", "categories")


@dataclass(frozen=True)
class Found:
    """What was found, and the settings that follow from it.

    Attributes:
        view: of the source.
        told: in words.
        settings: by dotted key, on top of the project's.
    """

    view: str
    told: str
    settings: dict[str, Any]


def look(source: Path | None, *, task: Path | None = None, labels: Path | None = None) -> Found:
    """Choose settings for a source, or for labelled texts.

    Args:
        source: file or folder of text.
        task: the user's own task, measured at the end and never trained on.
        labels: labelled texts to train on and, for their test part, to measure.

    Raises:
        CseError: nothing to train on, or columns that are those of nothing known.
    """
    measured = task or labels
    settings: dict[str, Any] = {"data.source": "files"}
    if measured is not None:
        check_exists(measured, "the task")
        settings["data.task_path"] = str(measured)
    if labels is not None:
        train = _reference(labels)
        more = _PAIRS_ONLY | {"train.distinct_batches": True, "train.dev_measure": "MAP"}
        told = f"labelled texts: pairs within a label, batches without two of one label ({train.name})"
        return Found("categories", told, settings | {"data.view": "categories", "data.train_path": str(train)} | more)
    if source is None:
        raise CseError("nothing to adapt to: name a file or folder of text, or labelled texts with --labels")
    view = view_of_source(source)
    settings |= {"data.view": view, "data.train_path": str(source)} | _for_view(view)
    return Found(view, _TOLD[view], settings)


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
    if ("title" in there and set(BODIES) & set(there)) or {"question", "answer"} <= set(there):
        return "documents"
    if any(set(names) <= set(there) for names in USUAL_COLUMNS["sentences"]):
        return "sentences"
    raise CseError(
        f"{path}: the columns {', '.join(there)} are not known; rename them to one of: title,text; question,answer; "
        "text; sent0,sent1; anchor,positive,negative; or prepare the rows yourself (docs/your-own-data.md)"
    )


def _for_view(view: str) -> dict[str, Any]:
    if view == "sentences":  # nothing of the same making can be held out
        return {"objective.energy_hinge.weight": 0.0, "mine.neighbours": 5}
    if view == "documents":
        return _PAIRS_ONLY | {"train.max_length": DOCUMENT_TOKENS, "train.distinct_batches": True}
    return {"data.hold_out": HELD_OUT} if view == "triplets" else _PAIRS_ONLY | {"train.distinct_batches": True}


def _reference(labels: Path) -> Path:
    """Return the file of labelled texts to train on."""
    splits = splits_of(labels) if labels.is_dir() else None
    if splits is not None:
        return splits["train"]
    if labels.is_file():
        return labels
    raise CseError(f"{labels}: labelled texts are a file, or a folder with train.* and test.*")


_TOLD = {
    "sentences": "plain sentences: pairs of those that are among each other's five nearest",
    "documents": "documents: title and first passage, passages that follow each other",
    "pairs": "pairs",
    "triplets": "triplets with hard negatives",
}
