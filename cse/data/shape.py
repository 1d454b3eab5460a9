"""What the columns of a file mean: one table of names and labels, for rows to train on and for tasks alike.

=============== ====================================================================================================
shape           columns
=============== ====================================================================================================
sentences       text (sentence), or the first of those below
categories      text (sentence) and category (label, intent): any label
pairs           two texts, such as sentence1,sentence2, that belong together; with a label or score, those that do
triplets        anchor,positive,negative (or negative_1 to negative_n, or lists of texts); or labelled pairs, whose
                negatives stand beside the positives of the same first text
labelled        two texts and an NLI label
=============== ====================================================================================================

A label of a pair says that its texts belong together (1, true, yes, duplicate, entailment, ...), that they do not (0,
false, no, not_duplicate, contradiction, ...), or neither (neutral); numbers beyond 0 and 1 are scores. All values of
the column decide which; a column that can be read in two ways is refused. A txt file has a sentence on each
line; for other shapes it is a tsv.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cse.choices import LABELS, NEUTRAL
from cse.data.checks import check_column, check_text, column_hint, listed, no_rows, required_text
from cse.data.read import TableFile, ending, open_table, text_lines
from cse.errors import CseError

# two texts of a row that belong together, unless a label says otherwise
PAIRS = (
    *(("sent0", "sent1"), ("sentence1", "sentence2"), ("anchor", "positive"), ("premise", "entailment")),
    *(("query", "document"), ("query", "positive"), ("query", "pos"), ("query", "passage")),
    *(("question1", "question2"), ("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("s1", "s2")),
    *(("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("sentence_A", "sentence_B"), ("sent1", "sent2")),
)
NLI = ("premise", "hypothesis")  # always with a label
_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?|contradiction")
_LABELS = ("gold_label", "label", "is_duplicate", "duplicate", "is_paraphrase", "paraphrase")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "gold")
TEXTS, CATEGORIES = ("text", "sentence"), ("category", "label", "intent")
LABELLED = "labelled"
# to be named in errors
_USUAL = {
    "sentences": ("text",),
    "pairs": ("sent0", "sent1"),
    "triplets": ("sent0", "sent1", "hard_neg"),
    LABELLED: ("sentence1", "sentence2", "label"),
    "categories": ("text", "category"),
}
JUDGED = ("pairs", "triplets")  # views of which labels make the rows
_SENTENCES = (*TEXTS, "sent0", "sentence1", "anchor", "premise")
# a column of numbers with such a name may be a label that the table does not know
_SUSPECT = re.compile(
    r"(^|_)(labels?|scores?|gold|similarity|duplicate|paraphrase|relevance|entailment|judge?ment|grade|rating|target)"
    r"(_|$)",
    re.IGNORECASE,
)
_SEEN = 1000  # rows that tell whether a column holds labels

_NO_LABEL = ("", "-", "nan", "none", "null", "n/a")
UNLABELLED = "-1"  # where the others are classes: SNLI, GLUE
_SAME = {"1", "true", "t", "yes", "y", "same", "match", "positive", "duplicate", "paraphrase", "similar", "relevant"}
_SAME |= {"related", "equivalent", "entailment", "entails", "supports"}
_OTHER = {"0", "false", "f", "no", "n", "different", "distinct", "mismatch", "negative", "dissimilar", "irrelevant"}
_OTHER |= {"unrelated", "contradiction", "contradicts", "refutes"}
_CLASSES = {word: label for label in LABELS for word in (label, label[0])}
_VERDICTS = dict(zip(LABELS, (True, None, False), strict=True))
_POSITIVE_FROM = 0.8  # of the range of scores: in STS, 4 of 5 differ in unimportant details
_RANGE = (0.0, 5.0)

# float() would also accept 0_1 and digits of any script; some write 0,5
_NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LIST = re.compile(r"\[(['\"]).*\1\]", re.DOTALL)
_WHOLE = re.compile(r"([+-]?\d+)\.0*", re.ASCII)

NEGATIVE_PAIR, NEUTRAL_PAIR, LOW_SCORE, NO_LABEL = "labelled_negative", "labelled_neutral", "low_score", "no_label"


class Row(NamedTuple):
    """One row of a file; a missing sentence or label is ``None``.

    ``line`` is the name of the file where a folder holds one document per file. ``label`` is empty in views without
    labels, ``group`` names the label or document of a row that keeps it, and ``fault`` is a reason to drop the row.
    """

    line: int | str
    texts: tuple[str | None, ...]
    label: str | None = ""
    group: str = ""
    fault: str = ""


# ---- columns -------------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """The columns of a shape: texts, the label if there is one, and how many of the texts are not negatives."""

    texts: tuple[str, ...]
    label: str | None = None

    @property
    def names(self) -> list[str]:
        """All of them, the label last."""
        return [*self.texts, *([self.label] if self.label else [])]


def pair_columns(there: Sequence[str], shown: str, *, scores: bool = False, named: bool = False) -> Columns | None:
    """Return the columns of pairs, with their label if there is one; None if there are none.

    Args:
        scores: whether a column of scores is taken before others.
        named: whether ``data.columns`` could name them.
    """
    texts = _first_of((*PAIRS, NLI), there)
    if texts is None:
        return None
    found = [name for name in (*SCORES, *_LABELS) if name in there and name not in texts]
    if scores:
        return Columns(texts, *found[:1])
    if len(found) > 1:
        setting = f", or set data.columns: [{', '.join(texts)}, {found[0]}]" if named else ""
        raise CseError(
            f"{shown}: the columns {listed(found)} may each be the label of {' and '.join(texts)}; remove those that "
            f"are not meant{setting}"
        )
    return Columns(texts, *found)


def triplet_columns(there: Sequence[str]) -> Columns | None:
    """Return the columns of an anchor, a positive and its hard negatives; None if there are none."""
    negatives = tuple(name for name in there if _NEGATIVE.fullmatch(name))
    texts = _first_of(PAIRS, there)
    return Columns((*texts, *dict.fromkeys(negatives))) if texts and negatives else None


def _first_of(pairs: Iterable[tuple[str, str]], there: Sequence[str]) -> tuple[str, str] | None:
    return next((pair for pair in pairs if set(pair) <= set(there)), None)


def sentence_columns(there: Sequence[str]) -> Columns | None:
    """Return the first usual column of sentences; None if there is none."""
    return next((Columns((name,)) for name in _SENTENCES if name in there), None)


def category_columns(there: Sequence[str]) -> Columns | None:
    """Return the columns of a text and its label; None if there are none."""
    found = [next((name for name in names if name in there), None) for names in (TEXTS, CATEGORIES)]
    return Columns((found[0],), found[1]) if found[0] and found[1] else None


def choose_columns(
    table: TableFile, view: str, columns: Sequence[str] | None, setting: str = "data.columns"
) -> Columns:
    """Return the columns to read; errors name ``setting``."""
    there = table.columns
    if columns is not None:
        for name in columns:
            check_column(name, there, table.shown, setting)
        count = {"sentences": 1, "categories": 1, "triplets": len(columns)}.get(view, 2)
        return Columns(tuple(columns[:count]), *columns[count:])
    lacks = next((name for name in _USUAL[view] if name not in there), "label")
    found: Columns | None = None
    if view == "sentences":
        found = sentence_columns(there)
    elif view == "categories":
        found = category_columns(there)
    elif view == LABELLED:
        label = next((name for name in _LABELS if name in there), None)
        texts = _first_of((*PAIRS, NLI), there)
        found = Columns(texts, label) if texts and label else None
    elif view == "pairs" or not (found := triplet_columns(there)):
        found = pair_columns(there, table.shown, named=True)
        if found and not found.label and (view == "triplets" or found.texts == NLI):
            found, lacks = None, "hard_neg" if view == "triplets" else "label"
    if found is None:
        purpose, hint = f" for data.view: {view}" if setting == "data.columns" else "", column_hint(lacks, there)
        raise CseError(f"{table.shown}: no column {lacks!r}{purpose}{hint}; name yours in {setting}")
    return found


# ---- labels --------------------------------------------------------------------------------------------------------


def plain(label: Any) -> str:
    """Return a label as text, however it is written: 1.0 is 1, a truth value true or false, a missing one empty."""
    text = "" if label is None else str(label).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text.lower() if text.lower() in ("true", "false", "nan") else text


def number_of(text: str) -> float:
    """Return a number, also one with a decimal comma; NaN for anything else."""
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else math.nan


def read_score(value: Any, where: str, score_range: Sequence[float], advice: str) -> float:
    """Return a gold score as a number; raise ``CseError`` if it is not a number in range; ``where``: file and line."""
    lowest, highest = score_range
    score = math.nan if isinstance(value, bool) else number_of(str(value).strip())
    if not lowest <= score <= highest:
        raise CseError(f"{where}: score {value!r} is not a number from {lowest:g} to {highest:g}; {advice}")
    return score


def read_class(value: Any, where: str) -> str | None:
    """Return one of ``LABELS``, or None for a pair without a gold label.

    Accepts words and their first letters in any case, or numbers in the order of ``LABELS`` (SNLI's and GLUE's: 0
    entailment, 1 neutral, 2 contradiction).
    """
    text = plain(value).lower()
    if text in (*_NO_LABEL, UNLABELLED):
        return None
    label = LABELS[int(text)] if text in ("0", "1", "2") else _CLASSES.get(text)
    if label is None:
        raise CseError(f"{where}: label {str(value)[:40]!r} is not one of {', '.join(LABELS)}, 0, 1, 2; correct it")
    return label


def name_in_words(label: str) -> str:
    """Return a label as its words: ``card_arrival``, ``card-arrival`` and ``CardArrival`` as ``card arrival``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", re.sub(r"[\W_]+", " ", label)).strip().lower() or label


def read_category(value: Any, where: str) -> str | None:
    """Return any label as text, or None for a blank one."""
    if not isinstance(value, str | int | float | None):
        raise CseError(f"{where}: label {str(value)[:40]!r} is neither text nor a number; correct it")
    text = plain(value)
    return None if text == "nan" and isinstance(value, float) else check_text(text, where) or None


class Judge(NamedTuple):
    """How the labels of a column of pairs are to be read.

    Attributes:
        verdicts: by label, whether the texts belong together; None for neither. Of scores: whether they are positives.
        told: in words, if that is not obvious.
    """

    verdicts: Mapping[str, bool | None]
    graded: bool = False
    told: str = ""

    def of(self, value: Any) -> bool | None:
        """Return whether two texts belong together; None for neither, and without a label."""
        return self.verdicts.get(_word(value))

    def fault(self, value: Any) -> str:
        """Return why a pair is no positive, "" if it is one."""
        word = _word(value)
        if word not in self.verdicts:
            return NO_LABEL
        if (found := self.verdicts[word]) is None:
            return NEUTRAL_PAIR
        return "" if found else LOW_SCORE if self.graded else NEGATIVE_PAIR


def judge_of(table: TableFile, columns: Columns, score_range: Sequence[float] = _RANGE) -> Judge:
    """Return how the labels of pairs are to be read, by all of them."""
    shown, lines = table.shown, _words_of(table, str(columns.label))
    if UNLABELLED in lines and score_range[0] >= 0:
        if lines.keys() == {UNLABELLED, "1"}:
            raise CseError(f"{shown}: labels 1 and -1: -1 may mean a negative or no label; write 0, or leave it empty")
        if lines.keys() <= {UNLABELLED, "0", "1", "2"}:
            del lines[UNLABELLED]
    numbers = {word: number_of(word) for word in lines}
    if lines and not any(map(math.isnan, numbers.values())):
        classes = _of_numbers(lines, columns, shown)
        return _graded(lines, numbers, shown, score_range) if classes is None else Judge(classes)
    if lines.keys() <= _CLASSES.keys() and lines.keys() != {"n"}:
        return Judge({word: _VERDICTS[_CLASSES[word]] for word in lines})
    for word, line in lines.items():
        if _truth(word) is None and word != NEUTRAL:
            raise CseError(
                f"{shown}:{line}: label {word[:40]!r} is not one of 0, 1, true, false, yes, no, duplicate, "
                f"not_duplicate, {', '.join(LABELS)}, nor a score; correct it, or set data.columns: "
                f"[{', '.join(columns.texts)}] to take every pair as one that belongs together"
            )
    return Judge({word: _truth(word) for word in lines})


def _of_numbers(words: Iterable[str], columns: Columns, shown: str) -> dict[str, bool | None] | None:
    """Return what whole numbers from 0 to 2 say of pairs; None if they are scores."""
    found, of_classes = set(words), columns.texts == NLI or columns.label == "gold_label"
    can = f"{shown}: the labels {', '.join(sorted(found))} in column {columns.label!r} may"
    say = "write the words entailment, neutral, contradiction"
    if found <= {"0", "1"}:
        if of_classes:
            raise CseError(f"{can} mean entailment and neutral, or no and yes; {say}")
        return {"0": False, "1": True}
    if not found <= {"0", "1", "2"} or columns.label in SCORES:
        return None
    if not of_classes:
        raise CseError(f"{can} be classes of NLI or scores; {say}, or name the column score")
    return {str(number): _VERDICTS[label] for number, label in enumerate(LABELS)}


def _graded(lines: dict[str, int], numbers: dict[str, float], shown: str, score_range: Sequence[float]) -> Judge:
    if tuple(score_range) == _RANGE and all(0 <= number <= 1 for number in numbers.values()):
        score_range = (0.0, 1.0)
    lowest, highest = score_range
    for word in numbers:
        read_score(word, f"{shown}:{lines[word]}", score_range, "fix it or set data.score_range")
    least = lowest + _POSITIVE_FROM * (highest - lowest)
    told = f"scores from {lowest:g} to {highest:g}: pairs of {least:g} or more are positives, the others are left out"
    return Judge({word: number >= least - 1e-9 for word, number in numbers.items()}, True, told)


def _words_of(table: TableFile, name: str, most: int | None = None) -> dict[str, int]:
    """Return the labels in a column, or in its first rows, each with its first line."""
    lines: dict[str, int] = {}
    for line, values in islice(table.pick([name]), most):
        if values and (word := _word(values[0])) not in _NO_LABEL:
            lines.setdefault(word, line)
    return lines


def _word(value: Any) -> str:
    word = plain(value).lower()
    if number_of(word) in (-1, 0, 1, 2):  # also +1, 1e0, and 1,0
        return str(int(number_of(word)))
    return word if word in _NO_LABEL or _NUMBER.fullmatch(word) else re.sub(r"[\s_-]+", "_", word)


def _truth(word: str) -> bool | None:
    if word in _SAME or word in _OTHER:
        return word in _SAME
    return False if re.sub("^(non|not|no)_?", "", word) in _SAME else None


def _is_label(word: str) -> bool:
    return _truth(word) is not None or word in _CLASSES or word == UNLABELLED


def _refuse_unknown_labels(table: TableFile, texts: Sequence[str], others: Sequence[str]) -> None:
    """Refuse pairs beside a column that may hold their labels, under a name that is not known."""
    for name in (name for name in others if others.count(name) == 1):
        seen = _words_of(table, name, _SEEN)
        scores = seen and _SUSPECT.search(name) and all(map(_NUMBER.fullmatch, seen))
        if scores or (len(seen) > 1 and all(map(_is_label, seen))):
            raise CseError(
                f"{table.shown}: column {name!r} may say which pairs belong together; if so, set data.columns: "
                f"[{', '.join(texts)}, {name}], else [{', '.join(texts)}]"
            )


# ---- rows ----------------------------------------------------------------------------------------------------------


def read_rows(
    path: Path,
    view: str,
    columns: Sequence[str] | None = None,
    encoding: str = "utf-8",
    score_range: Sequence[float] = _RANGE,
    tell: Callable[[str], object] = lambda note: None,
) -> Iterator[Row]:
    """Stream the rows of a txt, csv, tsv, jsonl or parquet file.

    Columns are in the order of the view, pairs with or without a label; None: the usual names. ``tell`` is told, before
    the first row, how scores are read, and which columns beside pairs are not.
    """
    if ending(path) == ".txt" and view == "sentences" and columns is None:
        lines = enumerate(text_lines(path, encoding), start=1)
        return _refuse_none(path, (Row(number, (line,)) for number, line in lines))
    table = open_table(path, encoding)
    chosen = choose_columns(table, view, columns)
    judge = None
    if view == LABELLED:
        if found := _words_of(table, str(chosen.label)).keys() - {UNLABELLED}:
            _of_numbers(found, chosen._replace(texts=NLI), str(path))
    elif view in JUDGED and chosen.label:
        judge = judge_of(table, chosen, score_range)
        tell(judge.told)
    elif view == "pairs" and columns is None:
        others = [name for name in table.columns if name not in chosen.texts and not _NEGATIVE.fullmatch(name)]
        _refuse_unknown_labels(table, chosen.texts, others)
        tell(f"every pair belongs together; not read: {listed(others)}" if others else "")
    return _refuse_none(path, rows_of(table, view, chosen, judge))


def rows_of(table: TableFile, view: str, columns: Columns, judge: Judge | None = None) -> Iterator[Row]:
    """Make rows of a table; a blank line is one without texts."""
    if judge is not None and view == "triplets":
        yield from _beside_negatives(rows_of(table, "pairs", columns, judge))
        return
    width = {"sentences": 1, "categories": 1, "triplets": 3}.get(view, 2)
    for line, values in table.pick(columns.names):
        where = f"{table.shown}:{line}"
        if not values:
            yield Row(line, (None,) * (width + (view in (LABELLED, "categories"))))
        elif view in (LABELLED, "categories"):
            read = read_class if view == LABELLED else read_category
            texts = tuple(check_text(value, where) for value in values[:width])
            yield Row(line, texts, read(values[-1], where))
        elif view == "sentences":
            yield Row(line, (check_text(values[0], where),))
        else:
            fault = "" if judge is None else judge.fault(values[-1])
            anchor, positives = check_text(values[0], where), _several(values[1:2], where)
            others = [_several(values[2:], where)] if view == "triplets" else []
            for place in range(max(map(len, (positives, *others)))):
                yield Row(line, (anchor, *(each[place % len(each)] for each in (positives, *others))), fault=fault)


def _several(values: Sequence[Any], where: str) -> list[str | None]:
    """Return the texts in columns that hold one or a list each: those that are not blank, or else one."""
    every = [check_text(each, where) for value in values for each in (value if isinstance(value, list) else [value])]
    if any(text and _LIST.fullmatch(text) for text in every):
        raise CseError(f"{where}: a list of texts written as text; write the rows as jsonl, lists as lists")
    return [text for text in every if text and text.strip()] or every[:1] or [None]


def _beside_negatives(rows: Iterable[Row]) -> Iterator[Row]:
    """Join the pairs of each first text to triplets; a pair without its opposite, or without a label, is dropped."""
    sides: dict[str | None, tuple[list[Row], list[Row]]] = {}
    for row in rows:
        if row.fault in ("", NEGATIVE_PAIR) and all(row.texts):
            sides.setdefault(row.texts[0], ([], []))[row.fault == NEGATIVE_PAIR].append(row)
        else:
            yield row._replace(texts=(*row.texts, None))
    for positives, negatives in sides.values():
        for place in range(max(len(positives), len(negatives))):
            row = (positives or negatives)[place % len(positives or negatives)]
            hard = negatives[place % len(negatives)].texts[1] if positives and negatives else None
            yield row._replace(texts=(*row.texts, hard))


def _refuse_none(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    row = None
    for row in rows:
        yield row
    if row is None:
        raise no_rows(str(path))


def read_texts(
    path: Path, column: str | None = None, beside: str | None = None, encoding: str | None = None
) -> list[tuple[str, ...]]:
    """Read one column of a csv, tsv, jsonl or parquet file, in which an empty field counts as text."""
    table = open_table(path, encoding)
    asked = None if column is None else [column]
    names = list(choose_columns(table, "sentences", asked, "--column").texts)
    if beside:
        check_column(beside, table.columns, str(path), "--domain-column")
        names.append(beside)
    rows = [
        tuple(
            required_text(value, name, f"{path}:{line}", blank=name == names[0])
            for value, name in zip(values, names, strict=True)
        )
        for line, values in table.pick(names)
        if values
    ]
    if not rows:
        raise no_rows(str(path))
    return rows
