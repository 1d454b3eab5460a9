"""Which source each step takes its rows from.

An epoch is one pass over the main source. Another source adds its weight times as many batches, taken from passes of
its own that go on from one epoch to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from cse.training.batches import Batches, Rows


class Mixture:
    """The table and the rows of every step of a run; they follow from the arguments alone.

    Args:
        tables: of the main source, then of the further ones.
    """

    def __init__(self, tables: Sequence[Rows], batch_size: int, epochs: int, seed: int) -> None:
        main, *more = tables
        first = Batches(main.count, batch_size=batch_size, epochs=epochs, seed=seed, keys_RK=main.keys)
        numbers_E = np.diff(first.ends, prepend=0)
        self._numbers_ET = np.stack([numbers_E, *(share(table.weight, numbers_E) for table in more)], axis=1)
        self._batches = [first]
        for number, table in enumerate(more, start=1):
            steps = int(self._numbers_ET[:, number].sum())
            own = seed_of(seed, number)
            self._batches.append(
                Batches(table.count, batch_size=batch_size, epochs=0, seed=own, keys_RK=table.keys, steps=steps)
            )
        self._starts_ET = self._numbers_ET.cumsum(axis=0) - self._numbers_ET
        self._ends_E = self._numbers_ET.sum(axis=1).cumsum()
        self._order = lru_cache(maxsize=2)(partial(self._order_of, seed))

    @property
    def steps(self) -> int:
        """Batches of the whole run."""
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


def share(weight: float, number: np.ndarray) -> np.ndarray:
    """Return how many batches a source adds to those of the main one, at least 1."""
    return np.maximum(np.rint(weight * number), 1).astype(np.int64)


def seed_of(seed: int, source: int) -> int:
    """Return the seed for the order of a further source, numbered from 1."""
    return int(np.random.SeedSequence([seed, source]).generate_state(1)[0])
