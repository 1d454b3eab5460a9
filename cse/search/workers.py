"""Make rows on several cores, GPUs or machines: actors of Ray make them, and this process writes what comes back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa

from cse.errors import CseError, counted, error_line
from cse.ray_session import ADDRESS, gpus_each, in_words, listed_machines, places, ray_session, with_more
from cse.runtime.session import usable_cpus
from cse.search.corpus import Document
from cse.search.model import CorpusModel
from cse.search.rows import PIECE, Choices, Made, Maker, Pieces

_STORE_BYTES = 512 << 20  # pieces and rows on their way; what does not fit goes to disk
_LOSSES = 4  # of a worker, and of a piece
_AHEAD = 2  # pieces that a worker has at a time, one of which it works on


def made_by_workers(
    stack: ExitStack,
    made_of: tuple[CorpusModel, Choices, pa.Schema],
    pieces: Pieces,
    total: int,
    say: Callable[[str], object],
) -> Iterator[Made]:
    """Yield the rows of pieces in any order; a worker that dies is replaced, and what it had is done again."""
    model, choices, schema = made_of
    workers, cores = choices.workers, usable_cpus()
    if workers > cores and not os.environ.get(ADDRESS):  # of a cluster, once it is joined
        raise CseError(f"--workers {workers}: this machine has {cores} usable cores; use {cores} or fewer")
    stack.enter_context(warnings.catch_warnings(action="ignore"))  # LanceDB's of a fork, as Ray starts its processes
    ray = stack.enter_context(ray_session(cpus=workers, store_bytes=_STORE_BYTES))
    gpus = _gpus_of_a_worker(ray, workers, choices.provider)
    count = min(workers, -(-total // PIECE))
    say(f"{counted(count, 'worker')} in Ray, {in_words(1, gpus)} each")
    actor = ray.remote(max_restarts=_LOSSES, max_task_retries=_LOSSES, num_cpus=1, num_gpus=gpus)(_Worker)
    made_of = model, replace(choices, threads=1), schema  # rows must not depend on where they are made
    return _made(ray, [actor.remote(*made_of) for _ in range(count)], pieces)


def _made(ray: Any, workers: list[Any], pieces: Pieces) -> Iterator[Made]:
    from ray.util import ActorPool

    pool = ActorPool(workers * _AHEAD)

    def one() -> Made:
        made = pool.get_next_unordered()
        if isinstance(made, str):
            raise CseError(made)
        return made

    try:
        for piece in pieces:
            if not pool.has_free():
                yield one()
            pool.submit(lambda worker, given: worker.make.remote(given), piece)
        while pool.has_next():
            yield one()
    except ray.exceptions.RayError as error:
        raise CseError(f"Ray gave up: {error_line(error)[:300]}; CSE_DEBUG=1 shows the details") from error


class _Worker:
    """A ``Maker`` in another process; a mistake comes back as a line: Ray prints an exception as pages of trace."""

    def __init__(self, *made_of: Any) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores belong to the other workers
        self._made_of = made_of
        self._maker: Maker | None = None

    def make(self, documents: list[Document]) -> Made | str:
        try:
            self._maker = self._maker or Maker(*self._made_of)
            return self._maker.embed(self._maker.prepare(documents))
        except (CseError, OSError) as error:
            return error_line(error)


def _gpus_of_a_worker(ray: Any, workers: int, provider: str) -> float:
    """Return each worker's share of the GPUs, 0 without CUDA; refuse workers that find no CPU of their own."""
    there = with_more(ray)
    gpus = gpus_each(there, workers) if provider == "cuda" else 0.0
    if provider == "cuda" and not gpus:
        raise CseError("--device cuda: Ray sees no GPU beside a CPU; use --device cpu")
    if (most := places(there, 1, gpus)) < workers:
        raise CseError(
            f"--workers {workers}: each takes {in_words(1, gpus)} of one machine, and Ray has "
            f"{listed_machines(there)}; {f'use {most} or fewer' if most else 'add machines'}"
        )
    return gpus
