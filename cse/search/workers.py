"""Make rows on several cores, GPUs or machines: Ray Data maps over pieces, and this process writes what comes back."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cse.errors import CseError, counted, error_line
from cse.ray_session import ADDRESS, Crew, gpus_each, in_words, largest_crew, listed_machines, ray_session, with_more
from cse.runtime.session import usable_cpus
from cse.search.rows import PIECE, Maker, Recipe

_STORE_BYTES = 512 << 20  # texts of pieces and rows on their way; what does not fit goes to disk
_LOSSES = 4  # of a worker, and of a piece
_STDERR = 2
_ERROR = "_error"  # column of what a worker could not make


def made_by_workers(
    stack: ExitStack, recipe: Recipe, pieces: Iterator[pa.Table], total: int, workers: int, say: Callable[[str], object]
) -> Iterator[pa.Table]:
    """Yield the rows of pieces in any order; a worker that dies is replaced, and what it had is done again."""
    check_workers(workers)
    stack.enter_context(_hushed())
    ray = stack.enter_context(ray_session(cpus=workers, store_bytes=_STORE_BYTES))
    crew = _crew(ray, min(workers, -(-total // PIECE)), workers, recipe.provider)
    say(f"{counted(crew.workers, 'worker')} in Ray, {crew} each")
    return _made(ray, recipe, pieces, crew)


def check_workers(workers: int) -> None:
    """Refuse more workers than this machine has cores; those of a cluster are checked once it is joined."""
    cores = usable_cpus()
    if workers > cores and not os.environ.get(ADDRESS):
        raise CseError(f"--workers {workers}: this machine has {cores} usable cores; use {cores} or fewer")


def _made(ray: Any, recipe: Recipe, pieces: Iterator[pa.Table], crew: Crew) -> Iterator[pa.Table]:
    from ray.data import ActorPoolStrategy, DataContext, from_arrow_refs

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        rows = from_arrow_refs([ray.put(piece) for piece in pieces]).map_batches(
            _Worker,
            fn_constructor_args=(recipe,),
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=crew.workers),
            num_cpus=crew.cpus,
            num_gpus=crew.gpus,
            max_restarts=_LOSSES,
            max_task_retries=_LOSSES,
        )
        for made in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
            if _ERROR in made.column_names:
                raise CseError(made[_ERROR][0].as_py())
            yield made
    except ray.exceptions.RayError as error:
        raise CseError(f"Ray gave up: {error_line(error)[:300]}; CSE_DEBUG=1 shows the details") from error


class _Worker:
    """A ``Maker`` in a process of its own on one core: rows must not depend on where they are made.

    A mistake comes back as a table: Ray prints an exception as pages of trace.
    """

    def __init__(self, recipe: Recipe) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores belong to the other workers
        self._error = ""
        try:
            self._make = Maker(replace(recipe, threads=1))
        except (CseError, OSError) as error:
            self._error = error_line(error)

    def __call__(self, documents: pa.Table) -> pa.Table:
        if not self._error:
            try:
                return self._make(documents)
            except (CseError, OSError) as error:
                self._error = error_line(error)
        return pa.table({_ERROR: [self._error]})


def _crew(ray: Any, jobs: int, workers: int, provider: str) -> Crew:
    """Give each worker a CPU and, with CUDA, its share of the GPUs."""
    there, gpu = with_more(ray), provider == "cuda"
    if gpu and not gpus_each(there, 1):
        raise CseError("--device cuda: Ray sees no GPU beside a CPU; use --device cpu")
    crew = largest_crew(ray, workers, workers, gpu=gpu)
    if crew.workers < workers:
        raise CseError(
            f"--workers {workers}: each takes {in_words(1, gpus_each(there, workers) if gpu else 0)} of one machine, "
            f"and Ray has {listed_machines(there)}; use {crew.workers} or fewer"
        )
    return crew._replace(cpus=1, workers=min(jobs, crew.workers))


@contextmanager
def _hushed() -> Iterator[None]:
    """Discard Ray's standard error, which reports every worker that Ray itself stops as lost, but for `cse --debug`."""
    if os.environ.get("CSE_DEBUG"):
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        kept = os.dup(_STDERR)
        sys.stderr.flush()
        os.dup2(nowhere.fileno(), _STDERR)  # Ray's C++ code writes there
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
