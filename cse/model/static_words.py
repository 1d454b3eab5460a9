"""Static word vectors (GloVe) as a backbone: the average of a sentence's word vectors.

Streams the text file once and keeps only the words needed. The result has the interface of ``Backbone``, so encoding,
whitening, checkpoints and export need no special cases.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import nn
from tqdm import tqdm

from cse.artifact import sha256
from cse.choices import PoolerKind
from cse.errors import CseError
from cse.model.backbone_files import BackboneFiles
from cse.model.declared import Declared, reading
from cse.model.passes import Packed, Prefix

PADDING, UNKNOWN = "[PAD]", "[UNK]"  # ids 0 and 1; both have zero vectors
LONGEST = 100_000  # tokens per sentence; no position table sets a limit
_COUNT_LINE = re.compile(rb"\d+ \d+\s*")


class StaticWords(nn.Module):
    """Word vectors with a tokenizer that splits at white space and punctuation."""

    pooling: PoolerKind = "mean"
    declared = Declared()
    dense = None
    layers = heads = head_size = 0
    hidden_dropout = 0.0
    pad_id, unknown_id = 0, 1
    max_positions = LONGEST

    def __init__(self, tokenizer: Tokenizer, table: torch.Tensor, files: BackboneFiles) -> None:
        super().__init__()
        self.tokenizer, self.files = tokenizer, files
        # (n + 2, D), not trained; zero for padding and unknown words
        self.model = nn.Embedding.from_pretrained(table, freeze=True)
        self.vocabulary, self.hidden_size = table.shape
        self.dimension = self.hidden_size

    @classmethod
    def empty(cls, folder: Path, count: int, dimension: int, files: BackboneFiles) -> StaticWords:
        """Build one from the tokenizer that ``save`` wrote, with zero vectors to load weights into."""
        path = folder / "tokenizer.json"
        with reading(str(path)):
            tokenizer = Tokenizer.from_file(str(path))
        if tokenizer.get_vocab_size() != count:
            raise CseError(f"{path}: has {tokenizer.get_vocab_size()} words, expected {count}; fetch it again")
        return cls(tokenizer, torch.zeros(count, dimension), files)

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a folder; the vectors are stored with the checkpoint's weights."""
        text = self.tokenizer.to_str(pretty=True)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8", newline="\n")

    def words(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Return word vectors ``(B, L, D)``."""
        return self.model(ids_BL)

    def embed(self, words_BLD: torch.Tensor, positions_BL: torch.Tensor) -> torch.Tensor:
        """Return the word vectors unchanged."""
        return words_BLD

    def run(
        self,
        embedded_BLD: torch.Tensor,
        positions_BL: torch.Tensor,
        mask_BL: torch.Tensor,
        prefix: Prefix | None,
        *,
        every: bool = True,
        packed: Packed | None = None,
    ) -> list[torch.Tensor]:
        """Return the word vectors as the only state: there are no layers."""
        return [embedded_BLD]

    def known(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return which tokens count in the mean: only known words."""
        return mask_BL * (ids_BL != self.unknown_id)

    def positions(self, mask_BL: torch.Tensor, shift: int) -> torch.Tensor:
        """Return zeros; a mean ignores positions."""
        return torch.zeros_like(mask_BL)

    def usable_length(self, shift: int) -> int:
        """Return how many tokens a sentence may have."""
        return LONGEST


def find_words(name: str) -> BackboneFiles:
    """Return the location and hash of a file of word vectors."""
    return BackboneFiles(name, "", Path(name), sha256(Path(name)))


def load_words(files: BackboneFiles, wanted: Collection[str] | None, *, progress: bool = False) -> StaticWords:
    """Load the vectors of the wanted words, None: of all, see ``read_words``."""
    words, vectors = read_words(files.folder, wanted, progress=progress)
    table = np.concatenate([np.zeros((2, vectors.shape[1]), np.float32), vectors])
    return StaticWords(_tokenizer(words), torch.from_numpy(table), files)


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words of a corpus as split by the tokenizer, both as written and in lower case."""
    splitter = pre_tokenizers.BertPreTokenizer()
    found: set[str] = set()
    for text in texts:
        found.update(word for word, _ in splitter.pre_tokenize_str(text))
    return found | {word.lower() for word in found}


def read_words(path: Path, wanted: Collection[str] | None, *, progress: bool = False) -> tuple[list[str], np.ndarray]:
    """Read word vectors from a text file, one ``word v1 ... vD`` per line, in a single pass.

    A word may contain spaces (a few in GloVe 840B do): the last ``D`` fields are the vector. Skips a first line of two
    integers (word2vec's count and width); if a word occurs twice, the first occurrence counts.
    """
    keys = None if wanted is None else {word.encode() for word in wanted}
    words: dict[str, np.ndarray] = {}
    width = None
    with (
        path.open("rb") as stream,
        tqdm(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, disable=not progress) as bar,
    ):
        for number, line in enumerate(stream, start=1):
            bar.update(len(line))
            if not line.strip():
                continue
            if number == 1 and _COUNT_LINE.fullmatch(line):
                width = int(line.split()[1])
                continue
            blanks = line.rstrip().count(b" ")
            if width is None:
                width = blanks
            word, *fields = line.rstrip().rsplit(b" ", width)
            if blanks < width or (blanks > width and _are_numbers(word.split(b" ")[1:])):
                raise CseError(
                    f"{path}:{number}: ragged row, found {blanks} numbers, the first line has {width}; "
                    "fetch the file again"
                )
            if keys is not None and word not in keys:
                continue
            text = word.decode("utf-8", "replace")
            try:
                words.setdefault(text, np.array(fields, dtype=np.float32))
            except ValueError:
                raise CseError(f"{path}:{number}: not {width} numbers after the word; fetch the file again") from None
    if not words:
        which = "no word of the data" if keys else "no word vectors"
        raise CseError(f"backbone.name: {path} holds {which}; is it a GloVe text file of the data's language?")
    return list(words), np.stack(list(words.values()))


def _are_numbers(fields: list[bytes]) -> bool:
    try:
        return bool(fields) and all(float(field) == float(field) for field in fields)
    except ValueError:
        return False


def _tokenizer(words: list[str]) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate([PADDING, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    if not any(word != word.lower() for word in words):
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
