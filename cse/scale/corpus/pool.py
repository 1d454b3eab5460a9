"""Share pieces out to a pool of actors with Ray Data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from cse.errors import CseError, error_line
from cse.scale.corpus.cluster import TRIES, Pool
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.sources import CorpusFile
from cse.scale.corpus.worker import Made, Worker, WorkerConfig

_WINDOW = 1024  # pieces that Ray sees at once, so that its memory does not grow with the corpus


class PieceActor:
    """A ``Worker`` as a Ray Data actor: takes a piece as a row and returns its outcome.

    User errors come back as text: Ray prints an exception as pages of trace.
    """

    def __init__(self, config: WorkerConfig) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores belong to the other actors
        self.error = ""
        try:
            self.worker = Worker(config)
        except (CseError, OSError) as error:
            self.error = error_line(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make the shards of a batch (of one piece)."""
        rows, truncated, error = 0, 0, self.error
        if not error:
            piece, source = _from_row(batch)
            try:
                self._count_tries(piece, source)
                rows, truncated = self.worker.make_shard(piece, source)
            except (CseError, OSError) as failure:
                error = error_line(failure)
        return {"rows": np.array([rows]), "truncated": np.array([truncated]), "error": np.array([error])}

    def _count_tries(self, piece: Piece, source: CorpusFile) -> None:
        """Refuse a piece that has killed several processes: Ray would restart them forever."""
        if self.worker.folder.count_try(piece.shard) > TRIES:
            raise CseError(
                f"{source.shown}:{piece.line}: the process that embeds the {piece.rows} rows from here died "
                f"{TRIES} times (out of memory?); use fewer --workers or smaller --shard-rows"
            )


def make_shards(config: WorkerConfig, todo: Iterator[tuple[Piece, CorpusFile]], pool: Pool) -> Iterator[Made]:
    """Make the shards of all pieces and yield each outcome once the shard is saved, in any order.

    Ray must be running, see ``cluster.running_ray``. A dead actor is restarted and its piece done again.

    Args:
        config: configuration of the workers.
        todo: the pieces and their files.
        pool: number and resources of the actors.

    Raises:
        CseError: the error of the first actor that fails.
    """
    import ray
    from ray.data import ActorPoolStrategy
    from ray.exceptions import RayError

    while window := list(islice(todo, max(_WINDOW, 64 * pool.workers))):
        actors = min(pool.workers, len(window))
        rows = [_to_row(piece, source) for piece, source in window]
        shards = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            PieceActor,
            batch_size=1,
            compute=ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
            fn_constructor_args=(config,),
            num_cpus=1,
            num_gpus=pool.gpus or None,
        )
        try:
            for answer in shards.iter_batches(batch_size=None, prefetch_batches=0, batch_format="numpy"):
                for *made, error in zip(answer["rows"], answer["truncated"], answer["error"], strict=True):
                    if error:
                        raise CseError(str(error))
                    yield Made(*map(int, made))
        except RayError as error:
            raise CseError(f"Ray gave up: {error_line(error)[:300]}; CSE_DEBUG=1 shows the details") from error


def _to_row(piece: Piece, source: CorpusFile) -> dict[str, Any]:
    """Return a piece and its file as a row of plain values for Arrow."""
    return {**asdict(piece), "url": source.url, "shown": source.shown}


def _from_row(batch: dict[str, Any]) -> tuple[Piece, CorpusFile]:
    """Return the piece and the file in a batch of one row."""
    values = {name: column[0] for name, column in batch.items()}
    url, shown = str(values.pop("url")), str(values.pop("shown"))
    return Piece(**{name: int(value) for name, value in values.items()}), CorpusFile(url, "", shown, None, "")
