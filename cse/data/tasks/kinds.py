"""The kinds of a task: what a user may bring, and what the papers measure besides (splits, transfer, captions)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

SCORED, BINARY, TRIPLETS = "scored pairs", "binary pairs", "triplets"
RETRIEVAL, LABELLED = "retrieval", "labelled texts"
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST-2", "TREC", "MRPC")  # SentEval's, in the order of tables
SPLITS, TRANSFER, CAPTIONS = "splits", "transfer", "caption pairs"
GIVEN, HALVES, HELD_OUT = "given", "halves", "held out"  # how labelled texts came to be split
PROXY = " (proxy)"  # ends the name of a task that only stands for what the user wants, and that of its measure


class _Columns:
    """Columns of texts of one length, that of the first of ``held_out``: names of those that no training row may hold.

    ``beside`` are names of others: documents and reference rows.
    """

    held_out: ClassVar[tuple[str, ...]] = ("sentence1", "sentence2")
    beside: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        return len(getattr(self, self.held_out[0]))


@dataclass(frozen=True)
class ScoredPairs(_Columns):
    """Sentence pairs with gold similarities.

    Attributes:
        score: gold similarity, float64 ``(n,)``; higher is more similar.
        subset: name of each pair's subset (``MSRpar``, ``headlines``, ...) where there are several.
    """

    name: str
    sentence1: list[str]
    sentence2: list[str]
    score: np.ndarray
    subset: list[str] | None = None


@dataclass(frozen=True)
class BinaryPairs(_Columns):
    """Pairs of texts that mean the same or do not.

    Attributes:
        label: whether the two mean the same, bool ``(n,)``.
        left_out: pairs of the file that are neutral or have no label.
    """

    name: str
    sentence1: list[str]
    sentence2: list[str]
    label: np.ndarray
    left_out: int = 0


@dataclass(frozen=True)
class Triplets(_Columns):
    """Texts, each with one that is nearer to it and one that is farther."""

    name: str
    anchor: list[str]
    positive: list[str]
    negative: list[str]
    held_out = ("anchor", "positive", "negative")


@dataclass(frozen=True)
class Retrieval(_Columns):
    """Queries that look for documents.

    Attributes:
        queries: texts of the ``q`` judged queries.
        documents: texts of all ``m`` documents, titles included.
        query, document: places of each judgement's query and document, int64 ``(j,)``; a document at -1 is relevant
            and not there.
        relevance: its grade, int64 ``(j,)``; 1 and above is relevant.
        own: place of the document that each query itself is, -1 where it is none, int64 ``(q,)``; None if all are none.
            It is not ranked, unless it is judged relevant.
        left_out: queries without a relevant document in the file of judgements.
        unknown: judgements of queries or documents that are not there, or have no text, whatever their grade.
        empty: documents without text, which are not among ``documents``.
    """

    name: str
    queries: list[str]
    documents: list[str]
    query: np.ndarray
    document: np.ndarray
    relevance: np.ndarray
    own: np.ndarray | None = None
    judged_in: str = "qrels/test.tsv"
    left_out: int = 0
    unknown: int = 0
    empty: int = 0
    held_out = ("queries",)
    beside = ("documents",)

    def only(self, chosen: Sequence[int]) -> Retrieval:
        """Return the task of some of its queries, over the same documents."""
        place = {query: number for number, query in enumerate(chosen)}
        rows = [row for row, query in enumerate(self.query.tolist()) if query in place]
        return replace(
            self,
            queries=[self.queries[query] for query in chosen],
            query=np.array([place[query] for query in self.query[rows].tolist()], np.int64),
            document=self.document[rows],
            relevance=self.relevance[rows],
            own=None if self.own is None else self.own[list(chosen)],
        )


@dataclass(frozen=True)
class LabelledTexts(_Columns):
    """Texts with one label each: reference rows, on which one may train, and test rows.

    ``names`` are texts that describe labels, and these labels; of others the label in words is the name. ``measured``
    are labelled texts of the same source that measured models: only what is kept learns from them. Neither is stored.
    """

    name: str
    reference: list[str]
    reference_label: list[str]
    test: list[str]
    test_label: list[str]
    split: str = GIVEN
    names: Sequence[tuple[str, str]] = ()
    measured: Sequence[tuple[str, str]] = ()
    held_out = ("test",)
    beside = ("reference",)


@dataclass(frozen=True)
class Splits:
    """The splits of a set of scored pairs, for paraphrase retrieval and the shape of the space.

    ``splits`` has ``train``, ``dev`` and ``test``, as far as they are there; each is called ``NAME SPLIT``.
    """

    name: str
    splits: dict[str, ScoredPairs]

    @property
    def parts(self) -> list[ScoredPairs]:
        """The splits that are there."""
        return list(self.splits.values())

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True)
class Labelled(_Columns):
    """Sentences or sentence pairs with classes, sorted as in SentEval before making folds.

    ``label`` has classes, counted from 0, int64 ``(n,)``.
    """

    texts: list[str]
    label: np.ndarray
    second: list[str] | None = None
    held_out = ("texts", "second")


@dataclass(frozen=True)
class TransferTask:
    """A classification task: without ``test``, folds of ``train`` are scored; ``dev`` selects the classifier."""

    name: str
    train: Labelled
    dev: Labelled | None = None
    test: Labelled | None = None

    @property
    def parts(self) -> list[Labelled]:
        """All parts that the task has."""
        return [part for part in (self.train, self.dev, self.test) if part is not None]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True)
class CaptionPairs(_Columns):
    """Scored pairs of captions.

    Attributes:
        score: gold similarity from 0 to 5, float64 ``(n,)``.
        image: number of the image of each pair's first caption, int64 ``(n,)``.
    """

    sentence1: list[str]
    sentence2: list[str]
    score: np.ndarray
    image: np.ndarray
    name: str = "CxC-STS"


Task = ScoredPairs | BinaryPairs | Triplets | Retrieval | LabelledTexts | Splits | TransferTask | CaptionPairs
_Kind = TypeVar("_Kind")
KINDS: dict[type, str] = {
    ScoredPairs: SCORED,
    BinaryPairs: BINARY,
    Triplets: TRIPLETS,
    Retrieval: RETRIEVAL,
    LabelledTexts: LABELLED,
    Splits: SPLITS,
    TransferTask: TRANSFER,
    CaptionPairs: CAPTIONS,
}


def own_documents(own: Iterable[int | None]) -> np.ndarray | None:
    """Return ``Retrieval.own`` from the place of each query's own document, None where it is none."""
    places = np.array([-1 if place is None else place for place in own], np.int64)
    return places if (places >= 0).any() else None


def kind_of(task: Task) -> str:
    """Return the kind of a task in words, such as ``retrieval``."""
    return KINDS[type(task)]


def of_kind(tasks: Iterable[Task], kind: type[_Kind]) -> list[_Kind]:
    """Return the tasks of one kind, given by its class."""
    return [task for task in tasks if isinstance(task, kind)]


def describe(task: Task) -> str:
    """Return the kind and the counts of a task as one line."""
    more = ""
    if isinstance(task, Retrieval):
        judged = int((task.document >= 0).sum())
        more = f" queries, {len(task.documents):,} documents, {judged:,} judgements in {task.judged_in}"
        for count, what in (
            (task.left_out, "queries without a relevant document left out"),
            (task.empty, "documents without text left out"),
            (task.unknown, "judgements of queries or documents that are not there"),
            (0 if task.own is None else int((task.own >= 0).sum()), "queries are documents, which they do not find"),
        ):
            more += f", {count:,} {what}" if count else ""
    elif isinstance(task, LabelledTexts):
        split = {GIVEN: "", HALVES: ", halves of one file, drawn by label with a fixed seed"}
        labels = len(set(task.reference_label) | set(task.test_label))
        rows = f"{labels:,} labels, {len(task.reference):,} reference and {len(task):,} test rows"
        known = {*task.reference}
        shared = sum(text in known for text in task.test)
        rows += f", {shared:,} of which are reference rows, too" if shared else ""
        return f"{LABELLED}: {rows}{split.get(task.split, ', held out of the training rows')}"
    elif isinstance(task, BinaryPairs):
        more = f" pairs, {int(task.label.sum()):,} of them mean the same"
        more += f", {task.left_out:,} that are neutral or have no label left out" if task.left_out else ""
    return f"{kind_of(task)}: {len(task):,}{more}"


def content_of(task: Task) -> str:
    """Return a hash of every text, label and judgement of a task in their order, 16 hexadecimal digits.

    Two scores can be compared item by item only where it is the same.
    """
    digest = hashlib.sha256(kind_of(task).encode())
    for column in fields(task):
        values = getattr(task, column.name)
        if isinstance(values, np.ndarray):
            values = values.tolist()
        if isinstance(values, list):
            digest.update(json.dumps([column.name, values]).encode())
    return digest.hexdigest()[:16]


def is_proxy(task: Task) -> bool:
    """Return whether a task only stands for what the user wants, see ``cse.data.hold_out``."""
    return task.name.endswith(PROXY)


def put_before(task: Task, first: str, second: str) -> Task:
    """Return pairs or triplets with a task text before each text: the first before first texts and anchors.

    Other tasks stay as they are: an encoder knows the roles of queries and documents, and labelled texts have none.
    """
    if not isinstance(task, ScoredPairs | BinaryPairs | Triplets):
        return task
    texts = zip(task.held_out, (first, second, second), strict=False)
    sides: dict[str, Any] = {name: [text + each for each in getattr(task, name)] for name, text in texts}
    return replace(task, **sides)


def held_out_texts(task: Task) -> Iterator[str]:
    """Yield the texts that no training row may hold: all but documents and reference rows."""
    for part in _parts_of(task):
        for name in part.held_out:
            yield from getattr(part, name) or ()


def _parts_of(task: Task) -> Sequence[_Columns]:
    return task.parts if isinstance(task, Splits | TransferTask) else [task]


def sentences_of(tasks: Iterable[Task]) -> Iterator[str]:
    """Yield every text of some tasks, repetitions included."""
    for task in tasks:
        yield from all_texts(task)


def all_texts(task: Task) -> Iterator[str]:
    """Yield every text of a task, repetitions included."""
    for part in _parts_of(task):
        for name in part.beside:
            yield from getattr(part, name)
    yield from held_out_texts(task)
