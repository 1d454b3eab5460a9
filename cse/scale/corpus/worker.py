"""Turn pieces into shards; runs in each process, with or without Ray.

While one piece is encoded, the next is read and tokenised and the one before is written, each in a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from cse.runtime.encode import Encoded, Prepared
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.model import hold_domains
from cse.scale.corpus.pieces import PieceRows
from cse.scale.corpus.plan import Choices, Piece
from cse.scale.corpus.shard import shard_bytes
from cse.storage import Folder


@dataclass(frozen=True)
class WorkerConfig:
    """Everything a process needs besides its pieces.

    Attributes:
        domain: domain of all rows; None for a bundle, and where each row names its own.
        domains: identity of each domain that can be used, by name; empty for a bundle.
    """

    bundle: str
    domain: str | None
    domains: Mapping[str, str]
    out: str
    choices: Choices
    id_type: IdType
    kept: Mapping[str, str]


class Made(NamedTuple):
    """Outcome of a piece: how many rows, how many distinct texts the model truncated, ids of rows that say nothing."""

    rows: int
    truncated: int
    left_out: list[Any]


class PreparedPiece(NamedTuple):
    """A piece, its rows, and their tokens."""

    piece: Piece
    rows: PieceRows
    prepared: Prepared


class Worker:
    """An encoder that makes shards on one core or a GPU."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        # always one thread: the bytes of a shard must not depend on where it is made
        self.encoder = OnnxEncoder(config.bundle, provider=config.choices.provider, threads=1)
        hold_domains(self.encoder.bank, config.domains)
        self.folder = Folder(config.out)
        self._encoding = threading.Lock()

    def make_shards(self, todo: Iterator[tuple[Piece, PieceRows]]) -> Iterator[Made]:
        """Make the shards of pieces one after another and yield each outcome once the shard is saved.

        Three pieces are in memory at a time. This thread encodes, so that a signal ends it between two batches.

        Args:
            todo: the pieces and their rows, taken from it in another thread, one ahead.
        """
        saving: Future[Made] | None = None
        with ThreadPoolExecutor(2, "beside") as beside:
            for work in _one_ahead(beside, (self.prepare(piece, rows) for piece, rows in todo)):
                encoded = self.encode(work)
                if saving is not None:
                    yield saving.result()
                saving = beside.submit(self.save, work, encoded)
            if saving is not None:
                yield saving.result()

    def make_shard(self, piece: Piece, rows: PieceRows) -> Made:
        """Make the shard of a piece. Several threads may call it at once: one of them encodes at a time."""
        work = self.prepare(piece, rows)
        with self._encoding:
            encoded = self.encode(work)
        return self.save(work, encoded)

    def prepare(self, piece: Piece, rows: PieceRows) -> PreparedPiece:
        """Tokenise a piece."""
        domain = rows.domains or self.config.domain
        return PreparedPiece(
            piece, rows, self.encoder.prepare(rows.texts, domain=domain, role=self.config.choices.role)
        )

    def encode(self, work: PreparedPiece) -> Encoded:
        """Encode a piece."""
        choices = self.config.choices
        return self.encoder.encode_prepared(work.prepared, choices.batch_size, normalize=choices.normalize)

    def save(self, work: PreparedPiece, encoded: Encoded) -> Made:
        """Write the shard of a piece."""
        config = self.config
        content = shard_bytes(
            work.rows, encoded.embeddings, config.id_type, config.kept, keep_text=config.choices.keep_text
        )
        self.folder.write(work.piece.shard, content)
        return Made(work.piece.rows, encoded.truncated, work.rows.left_out)


def _one_ahead(beside: ThreadPoolExecutor, items: Iterator[PreparedPiece]) -> Iterator[PreparedPiece]:
    """Yield items; while the caller has one, another thread makes the next."""
    following = beside.submit(next, items, None)
    while (item := following.result()) is not None:
        following = beside.submit(next, items, None)
        yield item
