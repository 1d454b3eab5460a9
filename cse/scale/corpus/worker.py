"""Turn a piece into a shard; runs in each process, with or without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.model import hold_domains
from cse.scale.corpus.pieces import PieceRows
from cse.scale.corpus.plan import Choices, Piece
from cse.scale.corpus.shard import shard_bytes
from cse.scale.storage import Folder


@dataclass(frozen=True)
class WorkerConfig:
    """Everything a process needs besides its pieces.

    Attributes:
        bundle: folder of the bundle or bank.
        domain: domain of all rows; None for a bundle, and where each row names its own.
        domains: identity of each domain that can be used, by name; empty for a bundle.
        out: output folder, an absolute path or a URL.
        choices: options that change a shard.
        id_type: type of the ids.
        kept: type of each kept column, by name.
    """

    bundle: str
    domain: str | None
    domains: Mapping[str, str]
    out: str
    choices: Choices
    id_type: IdType
    kept: Mapping[str, str]


class Made(NamedTuple):
    """Outcome of a piece: how many rows, and how many distinct texts the model truncated."""

    rows: int
    truncated: int


class Worker:
    """An encoder that makes shards on one core or a GPU.

    Raises:
        CseError: the bundle or bank does not load, a domain was replaced since the run began, or no GPU attaches.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        # always one thread: the bytes of a shard must not depend on where it is made
        self.encoder = OnnxEncoder(config.bundle, provider=config.choices.provider, threads=1)
        if self.encoder.bank is not None:
            hold_domains(self.encoder.bank, config.domains)
        self.folder = Folder(config.out)

    def make_shard(self, piece: Piece, rows: PieceRows) -> Made:
        """Encode and write a piece.

        Raises:
            CseError: a problem with the model or the output folder.
            OSError: the local disk cannot be written.
        """
        config, choices = self.config, self.config.choices
        domain = rows.domains or config.domain
        done = self.encoder.encode_counting(
            rows.texts, choices.batch_size, normalize=choices.normalize, domain=domain, role=choices.role
        )
        content = shard_bytes(rows, done.embeddings, config.id_type, config.kept, keep_text=choices.keep_text)
        self.folder.write(piece.shard, content)
        return Made(piece.rows, done.truncated)
