"""A sketch of unit-length vectors, and how far it has moved from another one.

It keeps counts, a mean and a variance per coordinate, and numbers by which it knows a text again; no vector and no
text. Legend: ``n`` vectors, ``d`` their width.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cse.errors import CseError
from cse.runtime.encode import unit_rows

SKETCH = "sketch.safetensors"  # in a bundle
HALF_LIFE = 10_000  # texts
KNOWN = 2 * HALF_LIFE  # texts that a sketch knows again; older ones count a quarter or less
FEWEST = 20  # different texts; fewer of one kind lie far from each other by chance
_LEAST = 1e-9  # total variance of unit-length vectors, far above that of rounding
_AGAIN = "export the bundle again"


@dataclass(frozen=True, eq=False)
class Moments:
    """What a sketch knows at one moment.

    Attributes:
        mean: (d,) float64.
        variance: (d,) float64, unbiased.
        count: number of vectors that stand behind them; with forgetting, of equally weighted ones.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    count: float

    @property
    def usable(self) -> bool:
        """Whether there are two vectors that differ, which a distance needs."""
        return self.count >= 2 and bool(self.variance.sum() > _LEAST)


class Sketch:
    """Mean and variance of a stream of vectors; older ones count less and less. Several threads may use it at once.

    A vector that was followed by ``k`` others has the weight ``2^(-k / half_life)``. A text that comes again is not
    counted twice: it has the weight of its last time. The result does not depend on how the stream was cut into
    batches.

    Args:
        dimension: d.
        half_life: number of vectors after which one counts half; None: all count the same.
    """

    def __init__(self, dimension: int, half_life: float | None = HALF_LIFE) -> None:
        self.half_life = half_life
        self._lock = threading.Lock()
        self._texts = 0
        self._weight = 0.0  # sum of the weights
        self._squares = 0.0  # sum of their squares
        self._mean = np.zeros(dimension)
        self._spread = np.zeros(dimension)  # weighted sum of squared deviations from the mean
        self._known: dict[int, tuple[int, float]] = {}  # by key, the latest last: when it came, and its weight then

    @property
    def texts(self) -> int:
        """Number of vectors added so far, the repeated and forgotten ones included."""
        return self._texts

    def add(self, vectors: NDArray[Any], keys: Sequence[int] | None = None) -> None:
        """Add vectors (n, d) in the order of their arrival; each is scaled to unit length.

        Args:
            vectors: one per text.
            keys: the same number for the same text (n); None: no text came before.
        """
        if not len(vectors):
            return
        rows = unit_rows(np.asarray(vectors, np.float64))
        kept = self._kept(np.arange(len(rows) - 1, -1, -1))
        with self._lock:
            known: NDArray[np.float64] = np.zeros(len(rows)) if keys is None else self._recognised(keys)
            weights = (1 - known) * kept
            weight = float(weights.sum())
            mean = weights @ rows / weight if weight else self._mean
            rows -= mean
            spread = weights @ np.square(rows, out=rows)
            self._join(len(rows), weight, float((1 - known**2) @ kept**2), mean, spread)

    def merge(self, later: Sketch) -> None:
        """Add the vectors of another sketch, which were others, as if they had arrived after this one's own.

        Raises:
            CseError: its half-life or width differs.
        """
        if later.half_life != self.half_life or later._mean.shape != self._mean.shape:
            raise CseError("sketches of different widths or half-lives cannot be merged")
        with later._lock:
            state = later._texts, later._weight, later._squares, later._mean.copy(), later._spread.copy()
        if state[0]:
            with self._lock:
                self._join(*state)

    def join(self, beside: Sketch) -> None:
        """Add the vectors of another sketch of this half-life and width as if they had arrived at the same times.

        A text that both know has the sum of its weights, and stands in the count as one.
        """
        with beside._lock:
            state = beside._texts, beside._weight, beside._squares, beside._mean.copy(), beside._spread.copy()
            theirs = beside._weights()
        if state[0]:
            with self._lock:
                own = self._weights()
                self._join(*state, kept=1.0)
                self._squares += 2 * sum(own[key] * theirs[key] for key in own.keys() & theirs.keys())
                both = {key: own.get(key, 0.0) + theirs.get(key, 0.0) for key in {**own, **theirs}}
                self._known = {key: (self._texts, weight) for key, weight in both.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock behind, which cannot go to another process."""
        with self._lock:
            state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
            return state | {"_known": dict(self._known)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a new lock."""
        self.__dict__.update(state, _lock=threading.Lock())

    def moments(self) -> Moments:
        """Return mean, variance and count as they are now.

        With weights ``w``, the count is ``(sum w)^2 / sum w^2`` and the variance is the spread divided by
        ``sum w - sum w^2 / sum w``: n and n - 1 where nothing is forgotten.
        """
        with self._lock:
            weight, squares = self._weight, self._squares
            freedom = weight - squares / weight if weight else 0.0
            several = freedom > _LEAST * weight  # one text, however often, has no variance
            variance = self._spread / freedom if several else np.zeros_like(self._spread)
            return Moments(self._mean.copy(), variance, weight**2 / squares if squares else 0.0)

    def distance(self, reference: Moments) -> float | None:
        """Return how far the vectors have moved from a reference; see ``distance``."""
        return distance(self.moments(), reference)

    def _kept(self, age: Any) -> Any:
        """Return the weight of vectors that so many others followed."""
        return age * 0.0 + 1.0 if self.half_life is None else 2.0 ** (-age / self.half_life)

    def _recognised(self, keys: Sequence[int]) -> NDArray[np.float64]:
        """Return what each text weighs before it comes (n), 0 for a new one. Called under the lock."""
        found = np.zeros(len(keys))
        for place, key in enumerate(keys):
            now = self._texts + 1 + place
            if (last := self._known.pop(key, None)) is not None:
                found[place] = min(1.0, last[1] * self._kept(now - last[0]))
            self._known[key] = now, 1.0
        while len(self._known) > KNOWN:
            del self._known[next(iter(self._known))]
        return found

    def _weights(self) -> dict[int, float]:
        """Return what each known text weighs now. Called under the lock."""
        return {key: weight * self._kept(self._texts - when) for key, (when, weight) in self._known.items()}

    def _join(
        self,
        texts: int,
        weight: float,
        squares: float,
        mean: NDArray[np.float64],
        spread: NDArray[np.float64],
        kept: float | None = None,
    ) -> None:
        """Take in the sums of other vectors, by Chan's formula for two groups. Called under the lock.

        What was there keeps the share ``kept`` of its weight; None: as much as if the others came later.
        """
        kept = float(self._kept(np.float64(texts))) if kept is None else kept
        own = self._weight * kept
        total = own + weight or 1.0
        step = mean - self._mean
        self._spread = self._spread * kept + spread + step * step * (own * weight / total)
        self._mean = self._mean + step * (weight / total)
        self._weight, self._squares = own + weight, self._squares * kept**2 + squares
        self._texts += texts


def distance(found: Moments, reference: Moments) -> float | None:
    """Return the squared Fréchet distance between two groups of vectors, in units of the reference's total variance.

    Both are taken for Gaussians with diagonal covariance. With means ``a`` and ``b``, standard deviations ``s`` and
    ``r`` and counts ``n`` and ``m`` (``b``, ``r`` and ``m`` the reference's)::

        (|a - b|^2 + |s - r|^2 - bias) / |r|^2,    bias = 1.5 (|s|^2 / n + |r|^2 / m)

    0: the same; 1: the mean has moved as far as the reference's texts spread around theirs. Finite groups of one
    distribution differ by chance: the means by ``|s|^2 / n + |r|^2 / m`` on average (about ``1 / n + 1 / m`` of the
    total variance), the standard deviations by half of that, if coordinates are Gaussian. This bias is subtracted, and
    a result below 0 is 0.

    Returns:
        The distance; None if either group has fewer than two vectors, or those of the reference do not differ.
    """
    if found.count < 2 or not reference.usable:
        return None
    means = np.square(found.mean - reference.mean).sum()
    spreads = np.square(np.sqrt(found.variance) - np.sqrt(reference.variance)).sum()
    total = reference.variance.sum()
    bias = 1.5 * (found.variance.sum() / found.count + total / reference.count)
    return max(0.0, float((means + spreads - bias) / total))


def sketch_of(vectors: NDArray[Any]) -> Moments:
    """Return the moments of vectors (n, d), none of them forgotten."""
    made = Sketch(vectors.shape[1], half_life=None)
    made.add(vectors)
    return made.moments()


def write_sketch(path: Path, moments: Moments) -> None:
    """Write a reference: float64 tensors ``mean`` (d,) and ``variance`` (d,), int64 ``count`` (1,)."""
    count = np.array([round(moments.count)], np.int64)
    path.write_bytes(save({"mean": moments.mean, "variance": moments.variance, "count": count}))


def read_sketch(path: Path, dimension: int) -> Moments:
    """Read a reference.

    Args:
        path: file that ``write_sketch`` wrote.
        dimension: d.

    Raises:
        CseError: it is not such a file, of another width, or holds impossible numbers.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise CseError(f"{path}: not a sketch of vectors ({str(error).splitlines()[0]}); {_AGAIN}") from None
    shapes = {name: (tensor.shape, tensor.dtype.name) for name, tensor in found.items()}
    wanted = {"mean": ((dimension,), "float64"), "variance": ((dimension,), "float64"), "count": ((1,), "int64")}
    if shapes != wanted:
        raise CseError(f"{path}: not a sketch of vectors of {dimension} numbers; {_AGAIN}")
    moments = Moments(found["mean"], found["variance"], float(found["count"][0]))
    finite = np.isfinite(moments.mean).all() and np.isfinite(moments.variance).all()
    if not (finite and (moments.variance >= 0).all() and moments.usable):
        raise CseError(f"{path}: its numbers are not those of vectors; {_AGAIN}")
    return moments
