"""What every measure needs: embeddings by sentence, what a score is, cosines of pairs and rank correlations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from cse.errors import CseError

_NO_CORRELATION = ("recall@", "alignment", "uniformity")  # metrics that are not similarity tasks


class UndefinedScore(CseError):  # noqa: N818 - reads as what it is: a score that does not exist
    """A rank correlation is undefined: one side is constant, or there are fewer than two pairs."""


class NotFinite(CseError):  # noqa: N818 - reads as what it is
    """Embeddings contain a NaN or an infinity."""


class TextEncoder(Protocol):
    """Anything that turns sentences into vectors: the training model, the ONNX runtime, a baseline."""

    def encode(
        self, sentences: list[str], /, *, batch_size: int = ..., normalize: bool = ..., show_progress_bar: bool = ...
    ) -> np.ndarray:
        """Return embeddings ``(n, d)`` in the order of the sentences; dropout off."""
        ...


class Vectors:
    """Embeddings by sentence: each distinct one is encoded once, however many tasks it occurs in."""

    def __init__(
        self,
        encoder: TextEncoder,
        sentences: Iterable[str],
        batch_size: int | None = None,
        progress: bool = False,
        role: str | None = None,
    ) -> None:
        self._rows: dict[str, int] = {}
        for sentence in sentences:
            self._rows.setdefault(sentence, len(self._rows))
        options = {"role": role, "batch_size": batch_size}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self._embeddings: np.ndarray = np.empty((0, 0), np.float32)
        if self._rows:
            self._embeddings = encoder.encode(list(self._rows), normalize=False, show_progress_bar=progress, **given)
        finite = np.isfinite(self._embeddings).all(axis=1)
        if not finite.all():
            sentence = next(text for text, row in self._rows.items() if not finite[row])
            shown = sentence if len(sentence) <= 60 else sentence[:57] + "..."
            raise NotFinite(
                f"evaluation: {int((~finite).sum())} of {len(self)} embeddings are not finite, the first of "
                f"{shown!r}; the model's weights have probably diverged, train with a lower learning rate"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the embeddings of sentences, ``(n, d)``, unchanged."""
        return self._embeddings[[self._rows[sentence] for sentence in sentences]]

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Return the cosine of each pair of sentences, float64 ``(n,)``."""
        return pair_cosines(self.of(first), self.of(second))


@dataclass(frozen=True)
class Score:
    """Scores of one task.

    Attributes:
        values: by measure, mostly times 100.
        facts: the same one by one, for JSON; ``main`` names the measure that stands for the task, if not the first.
        items: by measure that is a mean over items, its value for each, times 100, float64 ``(n,)``: a query, a
            triplet, a test row (for ``MAP`` of labelled texts, those that are not alone in their label). Pairs have
            ``cosine`` and ``gold`` instead, from which every measure of theirs can be computed, as they are; labelled
            texts also the number of the label that each measure told, as ``kNN label``.
        examples: queries of a paraphrase retrieval with what they found.
    """

    values: dict[str, float]
    setting: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    items: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    examples: list[Any] = field(default_factory=list, compare=False)

    @property
    def main(self) -> str:
        """The measure that stands for the task."""
        return self.facts.get("main") or next(iter(self.values))

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, facts and setting for JSON, without items and examples."""
        return {**self.values, **self.facts, **({"setting": self.setting} if self.setting else {})}


@dataclass(frozen=True)
class Averaged:
    """Scores of tasks that papers average.

    Attributes:
        tasks: scores by task, in the order of evaluation.
        published: names of the tasks in the published average, in the order of tables.
    """

    tasks: dict[str, Score]
    published: tuple[str, ...]
    setting: str = ""

    @property
    def average_name(self) -> str:
        """``Avg.`` if all published tasks are present, otherwise ``mean of n tasks``."""
        return average_name(self.tasks, self.published)

    @property
    def figures(self) -> dict[str, float]:
        """The value that stands for each task."""
        return {name: score.values[score.main] for name, score in self.tasks.items()}

    def average(self) -> float:
        """Return the mean of the scores, each rounded to two decimals, of the tasks that ``average_name`` covers.

        ``Avg.`` ignores tasks other than the published ones.
        """
        figures = self.figures
        covered = self.published if self.average_name == "Avg." else figures
        return float(np.mean([round(figures[name], 2) for name in covered]))

    def to_dict(self, called: str) -> dict[str, Any]:
        """Return nested numbers for JSON: tasks under ``called``, the average under its name, setting.

        ``{"sts": {"STS12": {"all": ..., "pairs": 3108}, ...}, "Avg.": ..., ...}``
        """
        return {
            called: {name: score.to_dict() for name, score in self.tasks.items()},
            self.average_name: round(self.average(), 4),
            **({"setting": self.setting} if self.setting else {}),
        }


def average_name(found: Collection[str], published: Collection[str]) -> str:
    """Return ``Avg.`` if all tasks of the published average are present, otherwise ``mean of n tasks``."""
    if set(published) <= set(found):
        return "Avg."
    return f"mean of {len(found)} task{'s' if len(found) > 1 else ''}"


def headline_name(scores: Iterable[str]) -> str | None:
    """Return a model's headline metric: the average over similarity tasks, or its first task."""
    names = [name for name in scores if name != "dev" and "(" not in name and not name.startswith(_NO_CORRELATION)]
    return next((name for name in names if name == "Avg." or name.startswith("mean of ")), next(iter(names), None))


def pair_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of each row of ``a`` ``(n, d)`` with the same row of ``b``, of any length, summed in float64: ``(n,)``.

    As in SimCSE's SentEval, an undefined cosine (a zero vector, a NaN) counts as 0.
    """
    if a.shape != b.shape or a.ndim != 2:
        raise ValueError(f"pair_cosines: expected two arrays of one shape (n, d), got {a.shape} and {b.shape}")

    def dots(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.einsum("nd,nd->n", a, b, dtype=np.float64)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # one root of the product, not a product of roots: equal rows then give exactly 1 and tie with each other
        cosines = dots(a, b) / np.sqrt(dots(a, a) * dots(b, b))
    return np.where(np.isfinite(cosines), cosines, 0.0)


def spearman(x: np.ndarray, y: np.ndarray, task: str = "scores") -> float:
    """Spearman's rank correlation of cosines ``(n,)`` with gold scores; tied values share the mean of their ranks."""
    if len(x) < 2:
        raise UndefinedScore(f"{task}: a rank correlation needs at least 2 pairs, found {len(x)}; add scored pairs")
    for values, name in ((x, "similarities"), (y, "gold scores")):
        if np.ptp(values) == 0:
            raise UndefinedScore(
                f"{task}: all {len(x)} {name} are equal ({values[0]:g}), so there is no rank correlation; "
                "use pairs of different similarity and a model that tells sentences apart"
            )
    from scipy.stats import spearmanr  # half a second, in which mistakes are told already

    return float(spearmanr(x, y).statistic)
