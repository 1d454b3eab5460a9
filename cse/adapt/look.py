"""Look at what the user has, and choose views, loss and held-out rows for it."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.data.checks import check_column, listed
from cse.data.clean import text_key
from cse.data.documents import ANSWER, BODIES, CORPUS, FILES, QUESTION, language_of, read_documents
from cse.data.read import TABLES, as_stored, check_exists, contents, data_files, ending, find_data_file, open_table
from cse.data.shape import (
    CATEGORIES,
    TEXTS,
    choose_columns,
    holds_labels,
    pair_columns,
    read_rows,
    sentence_columns,
    triplet_columns,
)
from cse.data.tasks.read import is_beir, splits_of
from cse.errors import CseError
from cse.evaluation.retrieval import NDCG
from cse.evaluation.score import CLASS_PROBABILITY

HELD_OUT = 0.1  # share of the rows that select the settings; as many are measured where there is no task
DOCUMENT_TOKENS = 128  # a passage of 60 words has about 90
_MOST_ROWS = 20_000  # stand-ins, and so documents, that are trained on
STAND_INS = 6000  # at least, where documents have as many sentences
_PAIRS_ONLY = {"objective.energy_hinge.weight": 0.0, "data.hold_out": HELD_OUT}

# labels ask for more than other rows: longer prompts, moved faster, and a vector of each label's own
_OF_LABELS = {
    "train.distinct_batches": True,
    "train.dev_measure": "MAP",
    "train.batch_size": 64,
    "train.learning_rate": 0.1,
    "prompt.length": 40,
    "objective.label_proxies.weight": 1.0,
}
# batches without two rows of a label would be as small as this: all texts of a label are positives instead
_FEW_LABELS = 32
_OF_FEW_LABELS = {
    "train.distinct_batches": False,
    "objective.nt_xent.weight": 0.0,
    "objective.supervised_contrastive.weight": 1.0,
}
# texts of a label, and in all; of fewer, more are held out to choose and are trained on in the end, and MAP does not
# choose: by it a head and long training would win, which cost accuracy
_FEW_ROWS, _FEW_TEXTS = 12, 400
_OF_FEW_ROWS = {"train.dev_measure": CLASS_PROBABILITY, "train.learning_rate": 0.03, "data.hold_out": 0.2}

# documents are searched: queries are trained against all of them, and nothing that stands for a search chooses
_OF_SEARCH: dict[str, Any] = {
    "data.pairs": ["stand_ins"],
    "data.dev": "own",
    "prompt.side": "query",
    "prompt.length": 8,
    "prompt.position_shift": False,
    "post.kind": "query_map",
    "objective.nt_xent.weight": 0.0,
    "objective.energy_hinge.weight": 0.0,
    "objective.collection.weight": 1.0,
    "train.max_length": DOCUMENT_TOKENS,
    "train.learning_rate": 0.03,
    "train.epochs": 2,
}


@dataclass(frozen=True)
class Found:
    """What was found, and the settings that follow from it.

    Attributes:
        language: ISO 639-1 code of the text's language; None if it has none that can be told.
    """

    view: str
    told: str
    settings: dict[str, Any]
    language: str | None

    @property
    def searched(self) -> bool:
        """Whether documents were found, which are to be searched."""
        return self.settings.get("data.pairs") == _OF_SEARCH["data.pairs"]


def look(
    sources: Sequence[Path],
    *,
    task: Path | None = None,
    labels: Path | None = None,
    judged: Path | None = None,
    columns: Sequence[str | None] | None = None,
    encoding: str = "utf-8",
    score_range: tuple[float, float] = (0.0, 5.0),
) -> Found:
    """Choose settings for one or more sources, or for labelled texts.

    Args:
        sources: files or folders of text; the first is the main one, unless there are labels.
        task: the user's own task, measured at the end and never trained on.
        labels: labelled texts to train on and, for their test part, to measure.
        judged: folder of judged queries that choose and are trained on, for documents alone.
        columns: of the main source, in the order of its view; None, and a column that is None: the usual ones.
        encoding: ``data.encoding``.
        score_range: ``data.score_range``.
    """
    settings: dict[str, Any] = {"data.source": "files"}
    asked, few, several = columns, False, ""
    if task is not None:
        check_exists(task, "the task")
        settings["data.task_path"] = str(task)
    if labels is not None:
        source, view, more = _reference(labels), "categories", list(sources)
        columns = _labelled_columns(source, columns or (None, None), encoding)
        counts, several = _count_labels(source, columns, encoding)
        few = len(counts) < _FEW_LABELS
        if labels.is_dir():  # its other part is the task
            settings["data.task_path"] = str(labels)
        settings |= _PAIRS_ONLY | _OF_LABELS | (_OF_FEW_LABELS if few else {})
        if statistics.median(counts.values()) < _FEW_ROWS or counts.total() < _FEW_TEXTS:
            settings |= _OF_FEW_ROWS
    elif not sources:
        raise CseError("nothing to adapt to: name a file or folder of text, or labelled texts with --labels")
    else:
        source, *more = sources
        check_exists(source, "the source")
        view = _view_of_columns(source, columns, encoding) if columns else view_of_source(source, encoding)
        settings |= _for_view(view, source, encoding)
    searched = "objective.collection.weight" in settings
    if judged is not None:
        settings |= _for_judged(judged, searched)
    language = language_of(_texts(source, view, columns, encoding, score_range))
    if view == "documents" and language is not None:
        settings["data.language"] = language
    settings |= {"data.view": view, "data.train_path": str(source)}
    if asked and columns:
        settings["data.columns"] = list(columns)
    if more:
        settings["data.more"] = _further(more, encoding, hinge=view == "triplets", labels_alone=few, searched=searched)
    beside = "".join(f"; beside them {path}" for path in more)
    read = f" (columns {', '.join(map(str, columns))})" if columns else ""
    if view == "pairs":
        several = _left_out(find_data_file(source), columns, encoding, score_range)
    told = "questions and answers" if settings.get("data.pairs") == ["question_answer"] else _TOLD[view]
    return Found(view, f"{source}{read}: {told}{several}{beside}", settings, language)


def _further(
    paths: Sequence[Path], encoding: str, *, hinge: bool, labels_alone: bool, searched: bool
) -> list[dict[str, Any]]:
    """Return sources beside the main one.

    Args:
        hinge: whether the hinge is on, which is for triplets alone.
        labels_alone: whether the main source has no loss but those of its labels, which others lack.
        searched: whether the main source is documents to search: others are more of them, or queries with theirs.
    """
    found: list[dict[str, Any]] = []
    for number, path in enumerate(paths, start=1):
        view = view_of_source(path, encoding)
        name = "-".join(re.findall("[a-z0-9]+", path.stem.lower()))[:30].strip("-") or "source"
        taken = {one["name"] for one in found}
        entry: dict[str, Any] = {"name": f"{name}-{number}" if name in taken else name, "path": str(path), "view": view}
        if view == "documents" and (searched or _answers(path, encoding)):
            entry["pairs"] = ["question_answer"] if _answers(path, encoding) else ["stand_ins"]
        if searched and view not in ("documents", "pairs"):
            raise CseError(
                f"{path}: {view} beside documents; give more documents, or pairs of a query and its document"
            )
        if hinge and view != "triplets":
            entry["terms"] = {"energy_hinge": 0.0}
        if labels_alone:
            entry["terms"] = {"nt_xent": 1.0}
        found.append(entry)
    return found


def view_of_source(path: Path, encoding: str = "utf-8") -> str:
    """Return the view of a file or folder, by its layout and columns.

    A table of texts with labels counts as sentences: labels are read where they are asked for.
    """
    check_exists(path, "the source")
    if path.is_dir():
        if as_stored(path / CORPUS).is_file() or is_beir(path):
            return "documents"
        texts = [name for name in contents(path) if ending(name) in FILES]
        tables = [file for file in data_files(path) if ending(file) in TABLES]
        if len(tables) != 1:
            if texts and not tables:
                return "documents" if len(texts) > 1 or ending(texts[0]) != ".txt" else "sentences"
            raise CseError(f"{path}: {len(tables)} tables and {len(texts)} files of text; name one of them")
        path = tables[0]
    if ending(path) not in TABLES:
        return "documents" if ending(path) in FILES and ending(path) != ".txt" else "sentences"
    there = open_table(path, encoding).columns
    if triplet_columns(there):
        return "triplets"
    if pair_columns(there, str(path)):
        return "pairs"
    if ("title" in there and set(BODIES) & set(there)) or {QUESTION, ANSWER} <= set(there):
        return "documents"
    if sentence_columns(there):
        return "sentences"
    raise CseError(
        f"{path}: the columns {', '.join(there)} are not known; rename them to one of: title,text; question,answer; "
        "text; sent0,sent1; anchor,positive,negative; or prepare the rows yourself (docs/your-own-data.md)"
    )


def _view_of_columns(source: Path, columns: Sequence[str | None], encoding: str) -> str:
    """Return the view of columns that were asked for; the third of three is a label if its values are."""
    if not 1 <= len(columns) <= 3:
        raise CseError(
            f"data.columns: one for sentences, two for pairs, three for triplets or labelled pairs, not {len(columns)}"
        )
    if len(columns) < 3:
        return ("sentences", "pairs")[len(columns) - 1]
    file, label = find_data_file(source), str(columns[2])
    table = open_table(file, encoding)
    check_column(label, table.columns, str(file), "data.columns")
    return "pairs" if holds_labels(table, label) else "triplets"


def _for_view(view: str, source: Path, encoding: str) -> dict[str, Any]:
    if view == "sentences":  # nothing of the same making can be held out
        return {"objective.energy_hinge.weight": 0.0, "mine.neighbours": 5, "data.dev": "own"}
    if view == "documents" and not _answers(source, encoding):
        return _for_search(source, encoding)
    if view == "documents":
        asked = {"data.pairs": ["question_answer"], "train.distinct_batches": True}
        return _PAIRS_ONLY | asked | {"train.max_length": DOCUMENT_TOKENS}
    if view == "pairs":
        return _PAIRS_ONLY | {"train.distinct_batches": True}
    file = find_data_file(source)
    texts = triplet_columns(open_table(file, encoding).columns) if ending(file) in TABLES else None
    repeats = texts and (len(texts.texts) > 3 or {"pos", "neg", "negatives"} & {*texts.texts})  # a text in many rows
    return {"data.hold_out": HELD_OUT} | ({"train.distinct_batches": True} if repeats else {})


def _for_search(source: Path, encoding: str) -> dict[str, Any]:
    """Return the settings for documents that are searched; refuse those that make no collection.

    Each gives as many stand-ins for queries as it takes to have ``STAND_INS`` of them.
    """
    short = longer = 0
    for document in read_documents(source, encoding=encoding):
        if any(text.strip() for part in document.sections for text in part.paragraphs):
            longer += 1
        else:
            short += bool(document.title.strip())
    if short + longer < 2:
        count = f"{short + longer} document{'s' if not short + longer else ''} with text"
        raise CseError(f"{source}: {count}; to be searched, name a folder or a table of two or more")
    if not longer:
        raise CseError(
            f"{source}: none of the {short:,} documents has more than a title, so no sentence stands in for a query; "
            "give their texts, or adapt to the titles as plain sentences (a .txt file, one a line)"
        )
    settings = _OF_SEARCH | {"data.stand_ins": max(-(-(STAND_INS - short) // longer), 1)}
    # a sample of a large collection teaches as much: half of Cranfield's or CACM's documents cost 0.3 and 1.5 points
    return settings | ({"data.max_rows": _MOST_ROWS} if short + longer > _MOST_ROWS else {})


def _for_judged(judged: Path, searched: bool) -> dict[str, Any]:
    """Return the settings for judged queries that choose."""
    if not searched:
        raise CseError("--dev-queries: judged queries are for documents, which SOURCE has to name")
    check_exists(judged, "--dev-queries")
    if not judged.is_dir() or not is_beir(judged):
        raise CseError(f"--dev-queries: {judged}: a folder of corpus.jsonl, queries.jsonl and qrels is needed")
    return {"data.dev_path": str(judged), "train.dev_measure": NDCG}


def _texts(
    source: Path, view: str, columns: Sequence[str | None] | None, encoding: str, score_range: tuple[float, float]
) -> Iterator[str]:
    """Yield the texts of a source as they stand there."""
    if view == "documents":
        for document in read_documents(source, questions=_answers(source, encoding), encoding=encoding):
            yield document.title
            yield from (paragraph for section in document.sections for paragraph in section.paragraphs)
    else:
        names = [name for name in columns or () if name] or None
        for row in read_rows(find_data_file(source), view, names, encoding, score_range):
            yield from (text for text in row.texts if text)


def _left_out(file: Path, columns: Sequence[str | None] | None, encoding: str, score_range: tuple[float, float]) -> str:
    """Return in words how many pairs their labels leave out; refuse pairs of which none is left."""
    names = [name for name in columns or () if name] or None
    notes: list[str] = []
    counts = Counter(row.fault for row in read_rows(file, "pairs", names, encoding, score_range, notes.append))
    left = ", ".join(f"{count:,} {fault}" for fault, count in counts.items() if fault)
    if left and not counts[""]:
        raise CseError(f"{file}: no pair belongs together by its label ({left}); give some that do")
    return "".join(f"; {note}" for note in notes if note) + (
        f"; left out of {counts.total():,}: {left}" if left else ""
    )


def _answers(source: Path, encoding: str) -> bool:
    """Whether a source is a table of questions and answers."""
    return ending(source) in TABLES and {QUESTION, ANSWER} <= set(open_table(source, encoding).columns)


def _reference(labels: Path) -> Path:
    """Return the file of labelled texts to train on."""
    check_exists(labels, "--labels")
    splits = splits_of(labels) if labels.is_dir() else None
    if splits is not None:
        return splits["train"]
    if labels.is_file():
        return labels
    there = listed(contents(labels)) or "nothing"
    raise CseError(f"{labels}: labelled texts are a file, or a folder with train.* and test.*; it holds {there}")


def _labelled_columns(file: Path, asked: Sequence[str | None], encoding: str) -> tuple[str, ...]:
    """Return the columns of text and label: those that were asked for, and the usual ones for the rest."""
    if ending(file) not in TABLES:
        return ()
    table = open_table(file, encoding)
    there = table.columns
    if len(asked) != 2:
        raise CseError(f"data.columns: labelled texts have two columns, text and label, not {len(asked)}")
    if not any(asked):
        return tuple(
            choose_columns(open_table(file, encoding), "categories", None, "--text-column or --label-column").names
        )
    found = []
    for name, usual, option in zip(asked, (TEXTS, CATEGORIES), ("--text-column", "--label-column"), strict=True):
        if name:
            check_column(name, there, str(file), option)
        else:
            name = next((one for one in usual if one in there and one not in asked), None)
            if name is None:
                raise CseError(
                    f"{file}: no column {' or '.join(usual)}; the columns are {listed(there)}; give {option}"
                )
        found.append(name)
    return tuple(found)


def _count_labels(file: Path, columns: Sequence[str | None], encoding: str) -> tuple[Counter[str], str]:
    """Return the texts of each label, and in words how many have several, if any.

    Labels that make no pairs, or nothing to tell apart, are refused.
    """
    rows = read_rows(file, "categories", [name for name in columns if name] or None, encoding)
    known = [(row.label, row.texts[0]) for row in rows if row.label and row.texts[0]]
    counts = Counter(label for label, _ in known)
    if len(counts) < 2:
        found = f"all texts have the label {next(iter(counts))[:40]!r}" if counts else "no text has a label"
        raise CseError(f"{file}: {found}; give texts of two labels or more")
    if max(counts.values()) < 2:
        asked = f" in column {columns[1]}" if columns else ""
        raise CseError(
            f"{file}: none of the {len(counts):,} labels{asked} has two texts, and pairs are made within a label; name "
            "the right column with --label-column, or give texts without labels as SOURCE"
        )
    labels_of: dict[bytes, set[str]] = {}
    for label, text in known:
        labels_of.setdefault(text_key(text), set()).add(label)
    several = sum(len(labels) > 1 for labels in labels_of.values())
    if several == len(labels_of):
        raise CseError(f"{file}: each of the {several:,} texts has two labels or more; give each text one label")
    some = f"; texts with two labels or more: {several:,} of {len(labels_of):,}" if several else ""
    return counts, some


_TOLD = {
    "categories": "labelled texts: pairs within a label",
    "sentences": "plain sentences: pairs of those that are among each other's five nearest",
    "documents": "documents: their titles and sentences stand in for queries",
    "pairs": "pairs",
    "triplets": "triplets with hard negatives",
}
