"""The bare backbone that a model is compared with, used as the model uses it, so that only the training differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.checkpoint import find_recorded_backbone
from cse.model.checkpoint_config import read_config
from cse.model.named import is_word_file
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import find_words, load_words
from cse.runtime.uses import QUERY


@dataclass(frozen=True)
class BareBackbone:
    """A backbone by name, and how a model uses it; the pooling is the backbone's own.

    Attributes:
        name, revision: folder or hub id, and its revision; or a file of word vectors.
        max_length: maximum tokens per text; None: as its folder declares.
        texts: task texts by role; None: as its folder declares.
    """

    name: str
    revision: str = "main"
    max_length: int | None = None
    texts: dict[str, str] | None = None

    def load(self) -> SentenceEncoder:
        """Load it."""
        if is_word_file(Path(self.name)):
            return SentenceEncoder(load_words(find_words(self.name), None))
        backbone = load_backbone(find_backbone(self.name, self.revision))
        encoder = SentenceEncoder(backbone.use_as(max_length=self.max_length, texts=self.texts))
        encoder.bare = True
        return encoder


def load_bare_backbone(folder: Path) -> SentenceEncoder:
    """Return the language model that a checkpoint was trained on, without the trained weights.

    It reads as many tokens as the checkpoint, behind the same task texts; of one with a query side, as its documents.
    """
    config = read_config(folder)
    backbone = load_backbone(find_recorded_backbone(folder, config))
    length = None if config["side"] == QUERY else config["max_length"]
    return SentenceEncoder(backbone.use_as(max_length=length, texts=config["texts"]))
