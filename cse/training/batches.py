"""Which rows share a batch: a slice of the epoch's permutation, or batches without false negatives.

The other rows of a batch serve as negatives. A row of the same group (label, document) or with the same text is a false
one, so ``distinct_batches`` puts no two such rows into one batch. An epoch is one pass over the main source; another
source adds its weight times as many batches, taken from passes of its own that go on from one epoch to the next.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa

from cse.data.store import GROUP, VIEW_COLUMNS, view_of

_CHUNK = 10_000


@dataclass(frozen=True)
class RowOrder:
    """The rows of one table, as far as their order goes.

    Attributes:
        keys: from ``row_keys``, for batches without false negatives; None: any rows may meet.
        weight: batches of these rows for each batch of the main source.
    """

    count: int
    keys: np.ndarray | None = None
    weight: float = 1.0


class Batches:
    """The rows of every step of a run over one table, of more than ``epochs`` if ``steps`` asks for more batches."""

    def __init__(self, rows: RowOrder, *, batch_size: int, epochs: int, seed: int, steps: int = 0) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self._batches = lru_cache(maxsize=2)(self._batches_of)
        self.ends: list[int] = []
        while len(self.ends) < epochs or self.steps < steps:
            number = math.ceil(rows.count / batch_size) if rows.keys is None else len(self._batches(len(self.ends)))
            self.ends.append(self.steps + number)

    @property
    def steps(self) -> int:
        return self.ends[-1] if self.ends else 0

    def at(self, step: int) -> tuple[int, np.ndarray]:
        """Return the epoch of a step and the numbers of its rows."""
        epoch = bisect_right(self.ends, step)
        place = step - (self.ends[epoch - 1] if epoch else 0)
        return epoch, self._batches(epoch)[place]

    def _batches_of(self, epoch: int) -> Sequence[np.ndarray]:
        if self.rows.keys is not None:
            return distinct_batches(self.rows.keys, batch_size=self.batch_size, seed=self.seed, epoch=epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.rows.count)
        return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]


def row_keys(rows: pa.Table) -> np.ndarray:
    """Return the keys that no two rows of a batch may share, int64 ``(rows, K)``: texts and group as numbers."""
    names = [name for name in VIEW_COLUMNS[view_of(rows)] if name != "label"]
    digests_RK = np.stack([_digests(rows, name) for name in names], axis=1)
    keys_RK = np.unique(digests_RK, return_inverse=True)[1].reshape(digests_RK.shape)
    if GROUP not in rows.column_names:
        return keys_RK
    return np.column_stack([group_numbers(rows) + keys_RK.max(initial=0) + 1, keys_RK])


def group_numbers(rows: pa.Table) -> np.ndarray:
    """Return the number of the group of each row, int64 ``(rows,)``."""
    return np.unique(_digests(rows, GROUP), return_inverse=True)[1]


def _digests(rows: pa.Table, name: str) -> np.ndarray:
    found = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), _CHUNK):
        texts = rows[name].slice(start, _CHUNK).to_pylist()
        data = b"".join(blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts)
        found[start : start + len(texts)] = np.frombuffer(data, np.uint64)
    return found


def rows_by_key(keys_RK: np.ndarray) -> np.ndarray:
    """Return how many rows have each key; the most is the least number of batches."""
    number = int(keys_RK.max(initial=0)) + 1
    once = np.unique(keys_RK + number * np.arange(len(keys_RK))[:, None])  # a row may have a key twice
    return np.bincount(once % number, minlength=number)


def distinct_batches(keys_RK: np.ndarray, *, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return an epoch's batches, each row in one, no two rows of a batch with a common key.

    There are as many batches as the batch size or the most frequent key asks for, more only if rows have several keys
    that rule each other out. Rows of the most frequent keys come first, each into the smallest batch that may take it,
    of equal ones the one that has waited longest: so batches that took a row of a key come last for the next of it.
    """
    rng, rows = np.random.default_rng([seed, epoch]), np.arange(len(keys_RK))
    counts = rows_by_key(keys_RK)
    chief_R = keys_RK[rows, counts[keys_RK].argmax(axis=1)]
    sequence = np.lexsort((rng.permutation(rows), rng.permutation(len(counts))[chief_R], -counts[chief_R]))
    number = max(math.ceil(len(rows) / batch_size), int(counts.max(initial=0)))
    batches: list[list[int]] = [[] for _ in range(number)]
    taken: list[set[int]] = [set() for _ in batches]  # keys of each
    free = [(0, batch, batch) for batch in range(number)]  # rows of it, when it took the last, its number
    for now, row in enumerate(sequence.tolist(), start=number):
        keys = {key for key in keys_RK[row].tolist() if counts[key] > 1}
        refused = []
        while free and not taken[free[0][2]].isdisjoint(keys):
            refused.append(heappop(free))
        size, _, batch = heappop(free) if free else (0, now, len(batches))
        if batch == len(batches):
            batches.append([])
            taken.append(set())
        batches[batch].append(row)
        taken[batch] |= keys
        for entry in (*refused, *([(size + 1, now, batch)] if size + 1 < batch_size else [])):
            heappush(free, entry)
    return [rng.permutation(batches[batch]) for batch in rng.permutation(len(batches)) if batches[batch]]


class Mixture:
    """The table and the rows of every step of a run, of the main source and further ones, from the arguments alone."""

    def __init__(self, tables: Sequence[RowOrder], *, batch_size: int, epochs: int, seed: int) -> None:
        main, *more = tables
        first = Batches(main, batch_size=batch_size, epochs=epochs, seed=seed)
        numbers_E = np.diff(first.ends, prepend=0)
        shares = [np.maximum(np.rint(table.weight * numbers_E), 1).astype(np.int64) for table in more]  # at least 1
        self._numbers_ET = np.stack([numbers_E, *shares], axis=1)
        self._batches = [first]
        for number, table in enumerate(more, start=1):
            steps = int(self._numbers_ET[:, number].sum())
            own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            self._batches.append(Batches(table, batch_size=batch_size, epochs=0, seed=own, steps=steps))
        self._starts_ET = self._numbers_ET.cumsum(axis=0) - self._numbers_ET
        self._ends_E = self._numbers_ET.sum(axis=1).cumsum()
        self._order = lru_cache(maxsize=2)(partial(self._order_of, seed))

    @property
    def steps(self) -> int:
        return int(self._ends_E[-1])

    def at(self, step: int) -> tuple[int, int, np.ndarray]:
        """Return the table of a step, the passes over it before this one, and the numbers of the step's rows."""
        epoch = int(np.searchsorted(self._ends_E, step, side="right"))
        place = step - (int(self._ends_E[epoch - 1]) if epoch else 0)
        table, number = (int(part[place]) for part in self._order(epoch))
        return table, *self._batches[table].at(int(self._starts_ET[epoch, table]) + number)

    def _order_of(self, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the table of each step of an epoch, and how many of the epoch's earlier steps have the same."""
        numbers_T = self._numbers_ET[epoch]
        tables = np.repeat(np.arange(len(numbers_T)), numbers_T)
        tables = np.random.default_rng([seed, epoch, len(numbers_T)]).permutation(tables)
        places = np.empty_like(tables)
        for table, number in enumerate(numbers_T):
            places[tables == table] = np.arange(number)
        return tables, places
