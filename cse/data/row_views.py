"""Views whose rows are made from something else: documents and categories; and what is held back as near-duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from cse.data.categories import ALONE, pairs_within_labels
from cse.data.clean import CleaningReport, Drop
from cse.data.documents import read_documents
from cse.data.hold_out import OVERLAP, HoldOut
from cse.data.near_duplicates import NEAR_DUPLICATE, NEAR_EVALUATION, NearDuplicates
from cse.data.passages import document_rows
from cse.data.readers import Row
from cse.errors import CseError
from cse.settings.groups.data import DataSettings

DOCUMENTS, CATEGORIES = "documents", "categories"
_REASONS = {DOCUMENTS: ("empty_document", "no_pair"), CATEGORIES: (ALONE,)}


def own_rows(settings: DataSettings) -> tuple[str, Iterator[Row]]:
    """Return the name of the source and the rows of its documents.

    Raises:
        CseError: documents or categories are to come from another source than files, or see ``read_documents``.
    """
    if settings.source != "files":
        raise CseError(
            f"data.source: {settings.source!r} has no {settings.view}; set data.source: files and data.train_path"
        )
    path = Path(settings.train_path)
    questions = settings.pairs == ["question_answer"]
    documents = read_documents(path, settings.columns, questions=questions, encoding=settings.encoding)
    rows = document_rows(
        documents,
        settings.pairs,
        language=settings.language,
        passage_words=settings.passage_words,
        stand_ins=settings.stand_ins,
    )
    return path.resolve().name, rows


def report_of(settings: DataSettings, source: str) -> CleaningReport:
    """Return an empty report with the reasons for which these settings may drop a row."""
    report = CleaningReport(source)
    near = () if settings.near_duplicates is None else (NEAR_EVALUATION, NEAR_DUPLICATE)
    held_out = (OVERLAP,) if settings.hold_out else ()
    for reason in (*_REASONS.get(settings.view, ()), *near, *held_out):
        report.dropped[reason] = Drop()
    return report


def arrangement(
    settings: DataSettings, report: CleaningReport, held_out: int, trained: int = 0
) -> HoldOut | Callable[[Iterator[Row]], Iterator[Row]] | None:
    """Return what makes rows out of the clean ones, and holds some out; None if nothing is to be done.

    Args:
        settings: the group ``data``.
        report: counts what is dropped.
        held_out: how many tasks to hold out.
        trained: how many of these to train on all the same, see ``HoldOut``.
    """
    pairs = None
    if settings.view == CATEGORIES:
        pairs = partial(pairs_within_labels, report=report, per_text=settings.pairs_per_text, seed=settings.seed)
    return HoldOut(settings.hold_out, settings.seed, report, pairs, held_out, trained) if held_out else pairs


def near_duplicates(settings: DataSettings, held_out: Iterable[str]) -> NearDuplicates | None:
    """Return what finds near-duplicates, or None if the settings want exact ones alone.

    Args:
        settings: the group ``data``.
        held_out: texts of dev and evaluation data.
    """
    if settings.near_duplicates is None:
        return None
    return NearDuplicates(settings.near_duplicates, held_out if settings.drop_evaluation_overlap else ())
