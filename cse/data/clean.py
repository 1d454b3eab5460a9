"""Clean a stream of rows: keep the usable ones and count every other by reason."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nsmallest
from operator import itemgetter
from random import Random

import numpy as np

from cse.data.checks import MOST_CHARACTERS, no_rows
from cse.data.shape import LOW_SCORE, NEGATIVE_PAIR, NEUTRAL_PAIR, Row
from cse.errors import CseError
from cse.runtime.tokens import is_blank
from cse.settings.data import DataSettings

_REMEDY = {
    "blank": "put sentences into the file",
    "missing_sentence": "fill the empty fields or name other columns in data.columns",
    "missing_hard_negative": "fill the third column or set data.view: pairs",
    "no_label": "fill the label column or name another one in data.columns",
    "too_long": f"raise data.max_words or split the sentences (at most {MOST_CHARACTERS:,} characters each)",
    "evaluation_overlap": "train on other sentences or set data.drop: [duplicates]",
    "duplicate": "set data.drop: [evaluation_overlap]",
    # of some views and settings only
    "empty_document": "fill the column with the bodies or name another one in data.columns",
    "no_pair": "choose other data.pairs",
    NEGATIVE_PAIR: "give pairs labelled 1, or set data.view: triplets where a first text has both",
    NEUTRAL_PAIR: "give pairs that belong together, or set data.view: labelled",
    LOW_SCORE: "give pairs with higher scores, or set data.score_range",
    "alone_in_label": "give each label two texts or more",
    "held_out_overlap": "prepare more rows, or set data.hold_out: 0",
}


@dataclass
class Drop:
    """Rows dropped for one reason: their number and the location of the first."""

    first: str
    count: int = 0


@dataclass
class CleaningReport:
    """Counts of what cleaning did with the rows of one source.

    Attributes:
        source: name of the file, without its folder.
        nul_replaced: kept rows whose NUL characters were replaced with spaces.
        evaluation_overlap_kept: rows kept although one of their sentences is in the evaluation data.
        not_drawn: usable rows not drawn because of ``max_rows``.
    """

    source: str
    read: int = 0
    kept: int = 0
    distinct_sentences: int = 0
    nul_replaced: int = 0
    evaluation_overlap_kept: int = 0
    not_drawn: int = 0
    dropped: dict[str, Drop] = field(default_factory=dict)

    def drop(self, reason: str, line: int | str) -> None:
        """Count a dropped row and record the location of the first."""
        self.dropped.setdefault(reason, Drop(f"{self.source}:{line}")).count += 1


class _Ignored(dict[int, int | None]):
    """Lazily filled translation table that deletes punctuation, white space and control characters of any script."""

    def __missing__(self, point: int) -> int | None:
        category = unicodedata.category(chr(point))
        self[point] = None if category[0] in "PZC" or category == "Sk" else point
        return self[point]


_IGNORED = _Ignored()


def overlap_key(sentence: str) -> bytes:
    """Return a key that ignores case, punctuation and white space; ``b""`` for a sentence without words."""
    if not sentence.isascii():
        sentence = unicodedata.normalize("NFKC", sentence)
    letters = sentence.casefold().translate(_IGNORED)
    return _digest(letters) if letters else b""


def text_key(text: str | None) -> bytes:
    """Return a key that a text shares with those that say the same: the overlap key, or a text without words itself."""
    return overlap_key(text or "") or trimmed(text).encode("utf-8")


def clean_rows(
    rows: Iterable[Row],
    report: CleaningReport,
    settings: DataSettings,
    held_out: Sequence[str] = (),
    arrange: Callable[[Iterator[Row]], Iterator[Row]] | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yield the usable rows in source order, trimmed, with the label or group (if any) last; count into ``report``.

    With ``max_rows`` it yields nothing until it has read the last row: every row has the same chance wherever it is,
    and memory holds only as many rows as are kept. A larger draw contains the smaller one. ``arrange`` makes other rows
    out of the clean ones, before the draw; rows with a text of ``held_out`` are dropped, or kept and counted.
    """
    keys = {key for key in map(overlap_key, held_out) if key}
    drops = "evaluation_overlap" in settings.drop
    clean = _clean(rows, report, settings, keys if drops else set())
    clean = clean if arrange is None else arrange(clean)
    sentences = array("Q")
    for row in clean if settings.max_rows is None else _draw(clean, settings.max_rows, settings.seed, report):
        texts = tuple(trimmed(text) for text in row.texts)
        sentences.extend(int.from_bytes(_digest(text)[:8], "little") for text in texts)
        report.nul_replaced += any(text is not None and "\0" in text for text in row.texts)
        report.evaluation_overlap_kept += not drops and _is_held_out(texts, keys)
        report.kept += 1
        more = row.label or row.group
        yield (*texts, more) if more else texts
    report.distinct_sentences = len(np.unique(np.frombuffer(sentences, dtype=np.uint64))) if sentences else 0
    if report.kept == 0:
        raise _nothing_left(report)


def _clean(rows: Iterable[Row], report: CleaningReport, settings: DataSettings, keys: set[bytes]) -> Iterator[Row]:
    """Yield the usable rows unchanged and count the others."""
    seen: set[bytes] = set()
    for row in rows:
        report.read += 1
        texts = tuple(trimmed(text) for text in row.texts)
        reason = row.fault or _fault(texts, row.label, settings.max_words)
        if reason is None and _is_held_out(texts, keys):
            reason = "evaluation_overlap"
        if reason is None and "duplicates" in settings.drop:
            digest = _digest("\0".join((*texts, row.label) if row.label else texts))
            if digest in seen:
                reason = "duplicate"
            seen.add(digest)
        if reason is None:
            yield row
        else:
            report.drop(reason, row.line)


def _draw(rows: Iterable[Row], count: int, seed: int, report: CleaningReport) -> Iterator[Row]:
    """Yield ``count`` random rows in source order: each row gets a random number and the smallest win."""
    rng, seen = Random(f"cse draw rows {seed}"), 0

    def numbered() -> Iterator[tuple[float, int, Row]]:
        nonlocal seen
        for row in rows:
            seen += 1
            yield rng.random(), seen, row

    drawn = nsmallest(count, numbered())
    report.not_drawn = seen - len(drawn)
    yield from (row for _, _, row in sorted(drawn, key=itemgetter(1)))


def trimmed(text: str | None) -> str:
    """Return a text as rows are written: without NUL characters and the white space around it."""
    if text is None:
        return ""
    return (text.replace("\0", " ") if "\0" in text else text).strip()


def _fault(texts: tuple[str, ...], label: str | None, max_words: int) -> str | None:
    says = [not is_blank(text) for text in texts]
    if not all(says):
        if not any(says):
            return "blank"
        return "missing_hard_negative" if len(says) == 3 and says[0] and says[1] else "missing_sentence"
    if label is None:
        return "no_label"
    for text in texts:
        if len(text) > MOST_CHARACTERS:
            return "too_long"
        # n words need at least 2n - 1 characters
        if len(text) > 2 * max_words and len(text.split()) > max_words:
            return "too_long"
    return None


def _is_held_out(texts: tuple[str, ...], keys: set[bytes]) -> bool:
    return bool(keys) and any(overlap_key(text) in keys for text in texts)


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8"), digest_size=16).digest()


def _nothing_left(report: CleaningReport) -> CseError:
    if not report.dropped:
        return no_rows(report.source)
    counts = sorted(report.dropped.items(), key=lambda each: -each[1].count)
    told = ", ".join(f"{drop.count} {reason} (first {drop.first})" for reason, drop in counts)
    return CseError(f"{report.source}: all {report.read} rows were dropped: {told}; {_REMEDY[counts[0][0]]}")
