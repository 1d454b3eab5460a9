"""The score of a user's own task under an encoder: values times 100, and what each is a mean of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from cse.data.tasks.kinds import (
    BINARY,
    LABELLED,
    PROXY,
    RETRIEVAL,
    SCORED,
    TRIPLETS,
    BinaryPairs,
    LabelledTexts,
    Retrieval,
    ScoredPairs,
    Task,
    Triplets,
    describe,
    is_proxy,
    kind_of,
)  # fmt: skip
from cse.errors import CseError, nearest
from cse.evaluation import labels, pairs, retrieval
from cse.evaluation.classifier import Rows, label_logits, names_of, own_probability
from cse.evaluation.dev_facts import SPEARMAN, DevScore
from cse.evaluation.measures import Score, TextEncoder, UndefinedScore, Vectors, pair_cosines, spearman
from cse.runtime.classifier import Classifier
from cse.runtime.encode import unit_rows
from cse.runtime.kept_vectors import mapped_unit_vectors
from cse.runtime.uses import role_for
from cse.search.passages import Tokenizing, split
from cse.search.words import DOCUMENTS

AP, F1, THRESHOLD, ACCURACY = "AP", "F1", "F1 threshold", "accuracy"
KNN, SAME_LABEL, CLASS_MEAN = "kNN", "MAP", "class mean"
SHIPPED = "accuracy as shipped"  # of the classifier that a bundle or a domain has
CLASS_PROBABILITY = "class probability"  # of the label that a text has, see ``own_probability``
COSINE, GOLD = "cosine", "gold"  # items of pairs that no value is a mean of
TOLD = " label"  # ends the name of the items that say which label a measure told, see ``labels.numbered``
# by kind, the main measure first
MEASURES: dict[str, tuple[str, ...]] = {
    SCORED: (SPEARMAN,),
    BINARY: (AP, F1, THRESHOLD),
    TRIPLETS: (ACCURACY,),
    RETRIEVAL: (*retrieval.MEASURES, retrieval.WITH_WORDS, retrieval.OF_WORDS),
    LABELLED: (KNN, SAME_LABEL, CLASS_MEAN, ACCURACY, SHIPPED),
}
_TO_CHOOSE = {LABELLED: (CLASS_PROBABILITY,)}  # measures that choose among models where asked to, and are not reported
_SETTINGS = {
    SCORED: "cosine against gold score",
    BINARY: "threshold on the cosine",
    TRIPLETS: "share of triplets whose positive has the higher cosine",
    RETRIEVAL: "exact search by cosine, by words (BM25) or half of each, long documents by their nearest passages, "
    "linear gain",
    LABELLED: f"{KNN}: vote of {labels.NEIGHBOURS} reference rows by cosine; {SAME_LABEL}: each test row's search for "
    f"the others of its label; {CLASS_MEAN}: nearest mean of a label's reference rows; {ACCURACY}: logistic "
    f"regression on reference rows and names of labels",
}
_OF_SOME = (THRESHOLD, SHIPPED)  # choose no model


@runtime_checkable
class Classifying(Protocol):
    """A model that may have a classifier of its own."""

    @property
    def classifier(self) -> Classifier | None:
        """What it tells labels by."""
        ...


class _Found(NamedTuple):
    """A measure: its value from 0 to 1, what that is a mean of, and the number of the label told for each text."""

    value: float
    items: np.ndarray | None = None
    told: np.ndarray | None = None


_Measures = Mapping[str, Callable[[], _Found]]


def score_task(
    encoder: TextEncoder,
    task: Task,
    *,
    batch_size: int | None = None,
    progress: bool = False,
    measures: Collection[str] | None = None,
) -> Score:
    """Score an encoder on a task; each distinct text is encoded once.

    Queries and documents get the task text of their role, where the encoder has one; no other text does.

    Args:
        measures: which measures of its kind to compute; None: all of ``MEASURES`` that are defined.
    """
    kind = kind_of(task)
    # parts of texts, which stand for documents in a proxy, are searched by vectors alone
    words = not is_proxy(task) and (
        measures is None or not {retrieval.WITH_WORDS, retrieval.OF_WORDS}.isdisjoint(measures)
    )
    known, items, said = _measures(task, UnitVectors(encoder, batch_size, progress), words)
    wanted = MEASURES[kind] if measures is None else measures
    found = {name: compute() for name, compute in known.items() if name in wanted}
    undefined = [name for name, each in found.items() if np.isnan(each.value)]
    if undefined and measures is not None:
        raise UndefinedScore(f"{task.name}: {undefined[0]} is not defined: no two test rows have the same label")
    found = {name: each for name, each in found.items() if name not in undefined}
    for name, each in found.items():
        if each.items is not None:
            items[name] = 100 * each.items
        if each.told is not None:
            items[f"{name}{TOLD}"] = each.told.astype(np.float64)
    values = {name: 100 * each.value for name, each in found.items()}
    setting = "; ".join([describe(task), _SETTINGS[kind], *said])
    return Score(values, setting, {"kind": kind, "main": MEASURES[kind][0]}, items)


def score_dev(
    encoder: TextEncoder,
    task: Task,
    batch_size: int | None = None,
    measure: str | None = None,
    *,
    progress: bool = False,
) -> DevScore:
    """Score an encoder on a dev task, by its main measure or another: the score that selects checkpoints."""
    name = dev_measure(task, measure, "train.dev_measure")
    plain = name.removesuffix(PROXY)
    found = score_task(encoder, task, batch_size=batch_size, progress=progress, measures=(plain,))
    return DevScore(found.values[plain], name)


def dev_measure(task: Task, wanted: str | None, setting: str) -> str:
    """Return the measure of a task that selects checkpoints: the wanted one or the main one; a proxy's is called so."""
    known = [name for name in MEASURES[kind_of(task)] if name not in _OF_SOME]
    known += _TO_CHOOSE.get(kind_of(task), ())
    mark = PROXY if is_proxy(task) else ""
    if wanted is None:
        return known[0] + mark
    wanted = wanted.removesuffix(PROXY)
    if wanted not in known:
        raise CseError(
            f"{setting}: {wanted!r} is no measure of {task.name} ({kind_of(task)}); one of {', '.join(known)}"
            f"{nearest(wanted, known)}"
        )
    return wanted + mark


@dataclass(frozen=True)
class UnitVectors:
    """Unit vectors of texts, float32, each distinct one encoded once per call."""

    encoder: TextEncoder
    batch_size: int | None
    progress: bool

    def of(self, *columns: Sequence[str], role: str | None = None) -> list[np.ndarray]:
        """Return the vectors of columns of texts, ``(n, D)`` each."""
        texts = [text for column in columns for text in column]
        vectors = Vectors(self.encoder, texts, self.batch_size, self.progress, role)
        return [unit_rows(vectors.of(column).astype(np.float32, copy=False)) for column in columns]

    def documents(self, texts: Sequence[str], role: str | None) -> np.ndarray:
        """Return the vectors of a collection; of a large one they lie in a file, and texts are encoded as they come."""
        if len(texts) <= DOCUMENTS:
            return self.of(texts, role=role)[0]

        def encode(part: list[str]) -> np.ndarray:
            return Vectors(self.encoder, part, self.batch_size, role=role).of(part)

        return mapped_unit_vectors(encode, texts, desc="documents", progress=self.progress)

    def cosines(self, first: list[str], second: list[str]) -> np.ndarray:
        """Return the cosine of each pair, float64 ``(n,)``."""
        return Vectors(self.encoder, [*first, *second], self.batch_size, self.progress).cosines(first, second)


def _measures(task: Task, vectors: UnitVectors, words: bool) -> tuple[_Measures, dict[str, np.ndarray], list[str]]:
    """Return the measures of a task, items that no value is a mean of, and what to say of the encoder's roles."""
    if isinstance(task, Retrieval):
        roles = [role_for(side, getattr(vectors.encoder, "texts", {})) for side in ("query", "document")]
        said = [f"{side} as {role}" for side, role in zip(("queries", "documents"), roles, strict=True) if role]
        return _of_queries(task, vectors, roles, words), {}, [", ".join(said)] if said else []
    if isinstance(task, LabelledTexts):
        return _of_labels(task, vectors), {}, []
    if isinstance(task, Triplets):
        anchor, positive, negative = vectors.of(task.anchor, task.positive, task.negative)
        hits = pairs.triplet_hits(pair_cosines(anchor, positive), pair_cosines(anchor, negative))
        return {ACCURACY: lambda: _mean(hits)}, {}, []
    if not isinstance(task, ScoredPairs | BinaryPairs):
        raise TypeError(f"{kind_of(task)} are measured in a suite")
    cosine = vectors.cosines(task.sentence1, task.sentence2)
    if isinstance(task, ScoredPairs):
        items = {COSINE: cosine, GOLD: task.score}
        return {SPEARMAN: lambda: _Found(spearman(cosine, task.score, task.name))}, items, []
    best = pairs.best_f1(cosine, task.label)
    known: _Measures = {
        AP: lambda: _Found(pairs.average_precision(cosine, task.label)),
        F1: lambda: _Found(best.f1),
        THRESHOLD: lambda: _Found(best.cosine),
    }
    return known, {COSINE: cosine, GOLD: task.label.astype(np.float64)}, []


def _of_queries(task: Retrieval, vectors: UnitVectors, roles: list[str | None], words: bool) -> _Measures:
    (query_QD,) = vectors.of(task.queries, role=roles[0])
    passages, first_N = _passages(task.documents, vectors.encoder)
    found = retrieval.score_queries(query_QD, vectors.documents(passages, roles[1]), task, first_N, words=words)
    measures: dict[str, Callable[[], _Found]] = {name: partial(_mean, each) for name, each in found.items()}
    if words:  # no model changes these: nothing of them is to be compared
        measures[retrieval.OF_WORDS] = lambda: _Found(_mean(found[retrieval.OF_WORDS]).value)
    return measures


def _passages(documents: Sequence[str], encoder: TextEncoder) -> tuple[Sequence[str], np.ndarray | None]:
    """Return the passages that `cse index` makes of documents, and each one's first; None if none is split."""
    if not isinstance(encoder, Tokenizing):
        return documents, None
    made = [one.passages for one in split(documents, [()] * len(documents), encoder.max_length, encoder.token_counts)]
    counts = np.array([len(each) for each in made], np.int64)
    if counts.max(initial=1) == 1:
        return documents, None
    return [passage for each in made for passage in each], np.cumsum(counts) - counts


def _of_labels(task: LabelledTexts, vectors: UnitVectors) -> _Measures:
    test, reference = labels.numbered(task.test_label, task.reference_label)

    @cache
    def both() -> list[np.ndarray]:
        return vectors.of(task.test, task.reference)

    @cache
    def among_themselves() -> np.ndarray:  # no reference rows: quick enough to select checkpoints
        return both()[0] if both.cache_info().currsize else vectors.of(task.test)[0]

    def told(by: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> _Found:
        test_TD, reference_ND = both()
        found = by(test_TD, reference_ND, reference)
        return _mean((found == test).astype(np.float64))._replace(told=found)

    @cache
    def classifier() -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return the logits of test rows (t, c) by what a bundle gets, each one's own column or -1, and the labels."""
        texts, named = names_of(task.reference_label, task.names)
        test_TD, reference_ND = both()
        known, logit_TC = label_logits(
            Rows(reference_ND, task.reference_label), Rows(vectors.of(texts)[0], named), test_TD
        )
        columns = {label: column for column, label in enumerate(known)}
        return logit_TC, np.array([columns.get(label, -1) for label in task.test_label]), known

    def classified() -> _Found:
        logit_TC, own, known = classifier()
        best = logit_TC.argmax(axis=1)
        number = {label: place for place, label in enumerate(labels.known_labels(task.test_label, known))}
        return _mean((best == own).astype(np.float64))._replace(told=np.array([number[known[one]] for one in best]))

    measures: dict[str, Callable[[], _Found]] = {
        KNN: lambda: told(labels.neighbour_labels),
        SAME_LABEL: lambda: _mean(labels.same_label_precisions(among_themselves(), test)),
        CLASS_MEAN: lambda: told(labels.class_mean_labels),
        CLASS_PROBABILITY: lambda: _Found(own_probability(*classifier()[:2])),
        ACCURACY: classified,
    }
    own = vectors.encoder.classifier if isinstance(vectors.encoder, Classifying) else None
    if own is not None and not set(task.test_label).isdisjoint(own.facts.labels):
        measures[SHIPPED] = partial(_as_shipped, own, both, task.test_label)
    return measures


def _as_shipped(own: Classifier, both: Callable[[], list[np.ndarray]], label: Sequence[str]) -> _Found:
    told = [one.label for one in own.classify(both()[0])]
    return _Found(float(np.mean([one == other for one, other in zip(told, label, strict=True)])))


def _mean(items: np.ndarray) -> _Found:
    return _Found(float(items.mean(dtype=np.float64)) if len(items) else float("nan"), items)
