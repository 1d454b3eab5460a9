"""From a piece to its shard: what each process does, with Ray and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cse.data.tables import Format
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.columns import IdType
from cse.scale.corpus.pieces import read_piece
from cse.scale.corpus.plan import Choices, Piece
from cse.scale.corpus.shard import shard_bytes
from cse.scale.corpus.sources import CorpusFile
from cse.scale.corpus.storage import Folder


@dataclass(frozen=True)
class WorkerConfig:
    """What a process needs to know beside its pieces.

    Attributes:
        bundle: folder of the model.
        out: folder of the shards, as a path from the root or a URL.
        format: of the corpus.
        choices: options that change a shard.
        id_type: of the ids.
    """

    bundle: str
    out: str
    format: Format
    choices: Choices
    id_type: IdType


class Made(NamedTuple):
    """What became of a piece: its rows, and how many distinct ones were truncated to what the model reads."""

    rows: int
    truncated: int


class Worker:
    """An encoder that makes shards on one core, or on a GPU.

    Raises:
        CseError: a bundle that does not load, or a GPU that does not attach.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        # one thread whoever runs it: the bytes of a shard must not depend on that
        self.encoder = OnnxEncoder(config.bundle, provider=config.choices.provider, threads=1)
        self.folder = Folder(config.out)

    def make_shard(self, piece: Piece, source: CorpusFile) -> Made:
        """Read, encode and write a piece.

        Raises:
            CseError: a corpus, a model or a place to write that does not do.
            OSError: the same of this machine's disk.
        """
        config, choices = self.config, self.config.choices
        rows = read_piece(piece, source, config.format, choices.columns, config.id_type)
        done = self.encoder.encode_counting(rows.texts, choices.batch_size, normalize=choices.normalize)
        self.folder.write(piece.shard, shard_bytes(rows, done.embeddings, config.id_type, keep_text=choices.keep_text))
        return Made(piece.rows, done.truncated)
