"""Views whose rows are made from something else: documents and categories; and what is held back as near-duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from cse.data.clean import CleaningReport, Drop
from cse.data.documents import read_documents
from cse.data.hold_out import OVERLAP, HoldOut
from cse.data.near_duplicates import NEAR_DUPLICATE, NEAR_EVALUATION, NearDuplicates
from cse.data.passages import document_rows
from cse.data.shape import Row
from cse.errors import CseError
from cse.settings.data import DataSettings

DOCUMENTS, CATEGORIES = "documents", "categories"
ALONE = "alone_in_label"
_REASONS = {DOCUMENTS: ("empty_document", "no_pair"), CATEGORIES: (ALONE,)}


def own_rows(settings: DataSettings) -> tuple[str, Iterator[Row]]:
    """Return the name of the source and the rows of its documents."""
    if settings.source != "files":
        raise CseError(
            f"data.source: {settings.source!r} has no {settings.view}; set data.source: files and data.train_path"
        )
    path = Path(settings.train_path)
    questions = settings.pairs == ["question_answer"]
    documents = read_documents(path, settings.columns, questions=questions, encoding=settings.encoding)
    rows = document_rows(documents, settings.pairs, language=settings.language, stand_ins=settings.stand_ins)
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
        trained: how many of these to train on all the same, see ``HoldOut``.
    """
    pairs = None
    if settings.view == CATEGORIES:
        pairs = partial(pairs_within_labels, report=report, seed=settings.seed)
    return HoldOut(settings.hold_out, settings.seed, report, pairs, held_out, trained) if held_out else pairs


def near_duplicates(settings: DataSettings, held_out: Iterable[str]) -> NearDuplicates | None:
    """Return what finds near-duplicates, or None if the settings want exact ones alone.

    Args:
        settings: the group ``data``.
    """
    if settings.near_duplicates is None:
        return None
    return NearDuplicates(settings.near_duplicates, held_out if "evaluation_overlap" in settings.drop else ())


def pairs_within_labels(rows: Iterator[Row], report: CleaningReport, *, seed: int) -> Iterator[Row]:
    """Yield pairs of texts with the same label, in the order of their first texts.

    Each label's texts are shuffled into a circle, and each text is the anchor of the one that follows it.

    Args:
        rows: cleaned rows of one text and its label, without duplicates.
        report: counts the texts that are alone in their label.
    """
    members: dict[str, list[Row]] = {}
    order = []
    for row in rows:
        assert row.label  # noqa: S101 - cleaning drops rows without one
        order.append(row)
        members.setdefault(row.label, []).append(row)
    if len(members) == 1 and len(order) > 1:
        raise CseError(
            f"{report.source}: one label only ({order[0].label}); pairs within labels need at least 2, so that the "
            "texts of others serve as negatives"
        )
    partner: dict[int | str, Row] = {}
    for label, found in members.items():
        circle = list(found)
        Random(f"cse pairs within labels {seed} {label}").shuffle(circle)
        partner |= {row.line: circle[(place + 1) % len(circle)] for place, row in enumerate(circle)}
    for row in order:
        other = partner[row.line]
        if other is row:
            report.drop(ALONE, row.line)
        else:
            yield Row(row.line, (row.texts[0], other.texts[0]), group=row.label or "")
