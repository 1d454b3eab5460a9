"""Share pieces out to workers with Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from cse.errors import CseError, error_line
from cse.ray_session import Crew
from cse.scale.corpus.pieces import PieceRows
from cse.scale.corpus.plan import Piece
from cse.scale.corpus.side_by_side import share_out
from cse.scale.corpus.sources import CorpusFile
from cse.scale.corpus.worker import Made, Worker, WorkerConfig

TRIES = 5  # of a piece whose process dies
# of an actor: one is encoded, the other is written, fetched or tokenised. On a GPU these may take longer than encoding.
_PIECES_AT_ONCE = {"cpu": 2, "openvino": 2, "cuda": 3}


class PieceActor:
    """A ``Worker`` in a process of its own, whose threads call ``run`` for several pieces at once.

    User errors come back as text: Ray prints an exception as pages of trace.
    """

    def __init__(self, config: WorkerConfig) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores belong to the other actors
        self.error = ""
        try:
            self.worker = Worker(config)
        except (CseError, OSError) as error:
            self.error = error_line(error)

    def run(self, piece: Piece, rows: PieceRows) -> Made | str:
        """Make the shard of a piece; an error is its result."""
        if self.error:
            return self.error
        try:
            return self.worker.make_shard(piece, rows)
        except (CseError, OSError) as error:
            return error_line(error)


def make_shards(
    ray: Any,
    config: WorkerConfig,
    todo: Iterator[tuple[Piece, PieceRows]],
    pieces: int,
    sources: list[CorpusFile],
    crew: Crew,
    say: Callable[[str], object],
) -> Iterator[Made]:
    """Make the shards of all pieces and yield each outcome once the shard is saved, in any order.

    A dead actor is replaced and its pieces done again.
    """
    # no actor takes a second piece that another, which starts a moment later, would begin at once
    each = min(_PIECES_AT_ONCE[config.choices.provider], -(-pieces // crew.workers))
    actor = ray.remote(num_cpus=crew.cpus, num_gpus=crew.gpus, max_concurrency=each)(PieceActor)
    jobs = ((piece, (piece, rows)) for piece, rows in todo)
    options: dict[str, Any] = {"each": each, "most_losses": TRIES - 1, "say": lambda line: say(f"embed: {line}")}
    try:
        for ended in share_out(ray, lambda: actor.remote(config), jobs, crew, **options):
            if ended.lost:
                piece = ended.name
                raise CseError(
                    f"{sources[piece.file].shown}:{piece.line}: the process that embeds the {piece.rows} rows from "
                    f"here died {TRIES} times (out of memory?); use fewer --workers or smaller --shard-rows"
                )
            if isinstance(ended.result, str):
                raise CseError(ended.result)
            yield ended.result
    except ray.exceptions.RayError as error:
        raise CseError(f"Ray gave up: {error_line(error)[:300]}; CSE_DEBUG=1 shows the details") from error
