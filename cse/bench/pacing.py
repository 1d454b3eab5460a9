"""How many updates a training has, and how often it is evaluated."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from cse.bench.data import DataFolders
from cse.data.store import TRAIN_FILE, open_rows, source_file
from cse.settings import Settings
from cse.settings.load import settings_with


def steps_of(settings: Settings, data: DataFolders) -> int:
    """Return the updates of a whole training."""
    train, more = settings.train, settings.data.more
    file = (data.mined if settings.mine.wanted else data.prepared) / TRAIN_FILE
    if not train.distinct_batches and not more:
        steps = math.ceil(len(open_rows(file)) / train.batch_size) * train.epochs
    else:
        files = ((file, 1.0), *((data.prepared / source_file(source.name), source.weight) for source in more))
        steps = mixed_steps(files, train.distinct_batches, train.batch_size, train.epochs, train.seed)
    return min(steps, train.max_steps or steps)


def evaluating(settings: Settings, data: DataFolders, times: int) -> Settings:
    """Return settings that evaluate so many times in a whole training."""
    return settings_with(settings, {"train.eval_every": spacing(steps_of(settings, data), times)})


def spacing(steps: int, times: int) -> int:
    """Return the updates from one evaluation to the next, for so many of them in all."""
    return max(math.ceil(steps / times), 1)


@lru_cache(maxsize=64)
def mixed_steps(files: tuple[tuple[Path, float], ...], distinct: bool, batch_size: int, epochs: int, seed: int) -> int:
    """Return the updates of a training whose batches depend on the rows.

    Args:
        files: rows and weight of each source.
        distinct: whether no batch holds a text twice.
        batch_size: rows per batch.
        seed: of their order.
    """
    from cse.training.batches import Mixture, RowOrder, row_keys

    sources = [(open_rows(file), weight) for file, weight in files]
    tables = [RowOrder(len(rows), row_keys(rows) if distinct else None, weight) for rows, weight in sources]
    return Mixture(tables, batch_size=batch_size, epochs=epochs, seed=seed).steps
