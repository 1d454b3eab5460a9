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
from heapq import heapify, heappop, heappush

import numpy as np
import pyarrow as pa

from cse.data.store import GROUP, VIEW_COLUMNS, view_of

NO_KEY = -1
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
    """Return the keys that no two rows of a batch may share, int64 ``(rows, K)``: group and texts as numbers.

    ``NO_KEY`` stands for a key that keeps no rows apart: of one row alone, or a text that occurs in one group alone.
    """
    names = [name for name in VIEW_COLUMNS[view_of(rows)] if name != "label"]
    texts_RK = np.unique(np.stack([_digests(rows, name) for name in names], axis=1), return_inverse=True)[1]
    texts_RK = texts_RK.reshape(len(rows), len(names)).astype(np.int64)
    for later in range(1, len(names)):  # a text that a row holds twice
        again = (texts_RK[:, :later] == texts_RK[:, later, None]).any(axis=1)
        texts_RK[again, later] = NO_KEY
    if GROUP not in rows.column_names:
        return _without_single(texts_RK)
    group_R = np.unique(_digests(rows, GROUP), return_inverse=True)[1].astype(np.int64)
    groups_RK = np.broadcast_to(group_R[:, None], texts_RK.shape)
    there, number = texts_RK != NO_KEY, int(texts_RK.max(initial=0)) + 1
    lowest, highest = np.full(number, len(rows)), np.full(number, -1)
    np.minimum.at(lowest, texts_RK[there], groups_RK[there])
    np.maximum.at(highest, texts_RK[there], groups_RK[there])
    texts_RK[there & (lowest == highest)[texts_RK]] = NO_KEY  # kept apart by their group
    return _without_single(np.concatenate([group_R[:, None] + number, texts_RK], axis=1))


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


def _without_single(keys_RK: np.ndarray) -> np.ndarray:
    """Number the keys from 0; those of one row alone become ``NO_KEY``."""
    found, places, counts = np.unique(keys_RK, return_inverse=True, return_counts=True)
    useful = (counts > 1) & (found != NO_KEY)
    numbers = np.where(useful, np.cumsum(useful) - 1, NO_KEY)
    return numbers[places].reshape(keys_RK.shape)


def most_frequent(keys_RK: np.ndarray) -> int:
    """Return how many rows have the most frequent key: the least number of batches."""
    return int(np.bincount(keys_RK[keys_RK != NO_KEY]).max(initial=0))


def distinct_batches(keys_RK: np.ndarray, *, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return an epoch's batches, each row in one, no two rows of a batch with a common key.

    There are as many batches as the batch size or the most frequent key asks for (more only if rows have several keys
    that rule each other out), and their sizes differ by no more than that demands. Rows of the most frequent keys come
    first, each into the smallest batch that may take it; the order within equals is random.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(keys_RK))
    counts = np.bincount(keys_RK[keys_RK != NO_KEY])
    number = max(math.ceil(len(order) / batch_size), int(counts.max(initial=0)))
    free = [(0, tie, batch) for batch, tie in enumerate(rng.permutation(number).tolist())]
    found = _filled(keys_RK, order, counts, free, batch_size)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    batches = [np.array(sorted(rows, key=place.__getitem__), np.int64) for rows in found if rows]
    return [batches[i] for i in rng.permutation(len(batches))]


def _filled(
    keys_RK: np.ndarray, order: np.ndarray, counts: np.ndarray, free: list[tuple[int, int, int]], batch_size: int
) -> list[list[int]]:
    """Put every row into the smallest batch that holds none of its keys.

    Rows that share their most frequent key follow each other; a batch that took one, or may not take the next, is held
    back until they are through. A batch is (rows, random number, its number); ``free`` has the empty ones.
    """
    chief_R, crossing = _chief_keys(keys_RK, counts)
    sequence = _by_class(chief_R, order)
    shared = [[key for key in keys if key != NO_KEY and crossing[key]] for keys in keys_RK.tolist()]
    batches: list[list[int]] = [[] for _ in free]
    held: list[tuple[int, int, int]] = []  # batches without a row of this class, refused to an earlier row of it
    used: list[tuple[int, int, int]] = []  # batches that took a row of this class
    taken: set[tuple[int, int]] = set()
    heapify(free)
    current = None
    for tie, row in enumerate(sequence.tolist()):
        if chief_R[row] != current:
            current = chief_R[row]
            for entry in (*held, *used):
                heappush(free, entry)
            held, used = [], []
        keys = shared[row]
        size, _, batch = _fitting(keys, held, free, taken) or (0, tie, len(batches))
        if batch == len(batches):
            batches.append([])
        batches[batch].append(row)
        taken.update((batch, key) for key in keys)
        if size + 1 < batch_size:
            used.append((size + 1, tie, batch))
    return batches


def _fitting(
    keys: list[int], held: list[tuple[int, int, int]], free: list[tuple[int, int, int]], taken: set[tuple[int, int]]
) -> tuple[int, int, int] | None:
    """Take and return the smallest batch without these keys; hold back those that have one."""
    for number, entry in enumerate(held):
        if not any((entry[2], key) in taken for key in keys):
            return held.pop(number)
    while free:
        entry = heappop(free)
        if not any((entry[2], key) in taken for key in keys):
            return entry
        held.append(entry)
    return None


def _chief_keys(keys_RK: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's most frequent key (a number of its own without one) and which keys share a row with another."""
    rows = np.arange(len(keys_RK))
    there_RK = keys_RK != NO_KEY
    padded = np.append(counts, 0)  # NO_KEY reads the last
    chief_R = keys_RK[rows, padded[keys_RK].argmax(axis=1)]
    crossing = np.zeros(len(padded), bool)
    several_R = there_RK.sum(axis=1) > 1
    crossing[keys_RK[several_R][there_RK[several_R]]] = True
    return np.where(chief_R == NO_KEY, len(counts) + rows, chief_R), crossing


def _by_class(chief_R: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the rows sorted by class: the largest first, classes of a size and rows of a class in random order."""
    classes, inverse, sizes = np.unique(chief_R, return_inverse=True, return_counts=True)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.full(len(classes), len(order))
    np.minimum.at(first, inverse, place)
    return np.lexsort((place, first[inverse], -sizes[inverse]))


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
