"""The kinds of a user's own task. Scored pairs, the fifth kind, are ``cse.data.scored.ScoredPairs``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from cse.data.scored import ScoredPairs

SCORED, BINARY, TRIPLETS = "scored pairs", "binary pairs", "triplets"
RETRIEVAL, LABELLED = "retrieval", "labelled texts"
GIVEN, HALVES, HELD_OUT = "given", "halves", "held out"  # how labelled texts came to be split
PROXY = " (proxy)"  # ends the name of a task that only stands for what the user wants, and that of its measure


@dataclass(frozen=True)
class BinaryPairs:
    """Pairs of texts that mean the same or do not.

    Attributes:
        name: name of the task.
        sentence1, sentence2: texts, ``n`` each.
        label: whether the two mean the same, bool ``(n,)``.
    """

    name: str
    sentence1: list[str]
    sentence2: list[str]
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.sentence1)


@dataclass(frozen=True)
class Triplets:
    """Texts, each with one that is nearer to it and one that is farther.

    Attributes:
        name: name of the task.
        anchor, positive, negative: texts, ``n`` each.
    """

    name: str
    anchor: list[str]
    positive: list[str]
    negative: list[str]

    def __len__(self) -> int:
        return len(self.anchor)


@dataclass(frozen=True)
class Retrieval:
    """Queries that look for documents.

    Attributes:
        name: name of the task.
        queries: texts of the ``q`` judged queries.
        documents: texts of all ``m`` documents, titles included.
        query, document: places of each judgement's query and document, int64 ``(j,)``.
        relevance: its grade, int64 ``(j,)``; 1 and above is relevant.
        own: place of the document that each query itself is, -1 where it is none, int64 ``(q,)``; None if all are none.
            It is not ranked, unless it is judged relevant.
        judged_in: file of the judgements.
        left_out: queries without a relevant document in the file of judgements.
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

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with one label each: reference rows, on which one may train, and test rows.

    Attributes:
        name: name of the task.
        reference, reference_label: texts and labels of the reference rows.
        test, test_label: texts and labels of the test rows.
        split: ``given``, ``halves`` of one file, or ``held out`` of the training rows.
    """

    name: str
    reference: list[str]
    reference_label: list[str]
    test: list[str]
    test_label: list[str]
    split: str = GIVEN

    def __len__(self) -> int:
        return len(self.test)


Task = ScoredPairs | BinaryPairs | Triplets | Retrieval | LabelledTexts


def own_documents(own: Iterable[int | None]) -> np.ndarray | None:
    """Return ``Retrieval.own`` from the place of each query's own document, None where it is none."""
    places = np.array([-1 if place is None else place for place in own], np.int64)
    return places if (places >= 0).any() else None


def kind_of(task: Task) -> str:
    """Return the kind of a task in words, such as ``retrieval``."""
    kinds = {ScoredPairs: SCORED, BinaryPairs: BINARY, Triplets: TRIPLETS, Retrieval: RETRIEVAL}
    return kinds.get(type(task), LABELLED)


def describe(task: Task) -> str:
    """Return the kind and the counts of a task as one line."""
    if isinstance(task, Retrieval):
        left = f", {task.left_out:,} queries without a relevant document left out" if task.left_out else ""
        if task.own is not None:
            left += f", {int((task.own >= 0).sum()):,} queries are documents, which they do not find"
        return (
            f"{RETRIEVAL}: {len(task):,} queries, {len(task.documents):,} documents, {len(task.relevance):,} "
            f"judgements in {task.judged_in}{left}"
        )
    if isinstance(task, LabelledTexts):
        split = {GIVEN: "", HALVES: ", halves of one file, drawn by label with a fixed seed"}.get(
            task.split, ", held out of the training rows"
        )
        labels = len(set(task.reference_label) | set(task.test_label))
        return f"{LABELLED}: {labels:,} labels, {len(task.reference):,} reference and {len(task):,} test rows{split}"
    if isinstance(task, BinaryPairs):
        return f"{BINARY}: {len(task):,} pairs, {int(task.label.sum()):,} of them mean the same"
    return f"{TRIPLETS}: {len(task):,}" if isinstance(task, Triplets) else f"{SCORED}: {len(task):,}"


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
    if isinstance(task, ScoredPairs | BinaryPairs):
        sentence1, sentence2 = [first + each for each in task.sentence1], [second + each for each in task.sentence2]
        return replace(task, sentence1=sentence1, sentence2=sentence2)
    if isinstance(task, Triplets):
        sides = ((first, task.anchor), (second, task.positive), (second, task.negative))
        anchor, positive, negative = ([text + each for each in side] for text, side in sides)
        return replace(task, anchor=anchor, positive=positive, negative=negative)
    return task


def held_out_texts(task: Task) -> Iterator[str]:
    """Yield the texts that no training row may hold: all but documents and reference rows."""
    if isinstance(task, Retrieval):
        yield from task.queries
    elif isinstance(task, LabelledTexts):
        yield from task.test
    elif isinstance(task, Triplets):
        for side in (task.anchor, task.positive, task.negative):
            yield from side
    else:
        yield from task.sentence1
        yield from task.sentence2


def all_texts(task: Task) -> Iterator[str]:
    """Yield every text of a task, repetitions included."""
    if isinstance(task, Retrieval):
        yield from task.documents
    elif isinstance(task, LabelledTexts):
        yield from task.reference
    yield from held_out_texts(task)
