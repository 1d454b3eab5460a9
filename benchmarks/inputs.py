"""What benchmarks run on: a user's rows or the sample's, and a backbone that exists or one of random weights."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as counted
from itertools import islice
from pathlib import Path
from random import Random

import pyarrow as pa
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

from cse.data.sample import sample_rows
from cse.data.shape import read_rows
from cse.data.store import VIEW_COLUMNS
from cse.errors import CseError, nearest
from cse.model.backbone_files import BackboneFiles, find_backbone, read_tokenizer
from cse.model.declared import MINILM
from cse.runtime.tokens import plain_copy

RANDOM = "random:"
LONGEST = 100  # words of a mixed text
SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add ``--triplets``, ``--backbone`` and ``--device``."""
    parser.add_argument("--triplets", type=Path, metavar="CSV", help="your triplets instead of the sample's")
    shapes = f"{RANDOM}{{{','.join(SHAPES)}}}"
    parser.add_argument("--backbone", default=MINILM, help=f"folder, hub id, or {shapes}")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="where to run")


def rows_of(view: str, count: int, triplets: Path | None) -> pa.Table:
    """Return training rows of a view: ``triplets``, or ``sentences``, which are the anchors of triplets."""
    if triplets is not None and not triplets.is_file():
        raise CseError(f"--triplets: no file {triplets}{nearest(str(triplets), map(str, triplets.parent.glob('*')))}")
    source = endless_rows(view) if triplets is None else (row.texts for row in read_rows(triplets, view))
    names = VIEW_COLUMNS[view]
    rows = [dict(zip(names, texts, strict=True)) for texts in islice(source, count)]
    if len(rows) < count:
        raise CseError(f"{triplets}: {len(rows):,} rows, but {count:,} are wanted; give a longer file or fewer steps")
    return pa.Table.from_pylist(rows)


def endless_rows(view: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the sample for ever; a text that comes again ends in the times that it came before."""
    for times in counted():
        yield from (tuple(f"{text} {times}" if times else text for text in row) for row in sample_rows(view))


def sentences_of(count: int, triplets: Path | None) -> list[str]:
    """Return distinct sentences, those of the rows of triplets."""
    rows = rows_of("triplets", count, triplets)  # a row has a distinct sentence at least, or nearly
    found = list(dict.fromkeys(text for row in rows.to_pylist() for text in row.values()))
    if len(found) < count:
        raise CseError(f"{triplets}: {len(found):,} distinct sentences, but {count:,} are wanted; give a longer file")
    return found[:count]


def lengths_of(texts: list[str], folder: Path, limit: int) -> list[int]:
    """Return the real tokens of each text by a backbone's tokenizer, special tokens included, cut at ``limit``."""
    tokenizer = read_tokenizer(BackboneFiles(str(folder), "main", folder, ""))
    return [min(len(found.ids), limit) for found in plain_copy(tokenizer).encode_batch(texts)]


@contextmanager
def backbone_folder(name: str) -> Iterator[Path]:
    """Yield the folder of a backbone; one of random weights is deleted afterwards."""
    if not name.startswith(RANDOM):
        yield find_backbone(name).folder
        return
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise CseError(f"--backbone: no shape {shape!r}{nearest(shape, SHAPES)}; give {', '.join(SHAPES)}")
    with tempfile.TemporaryDirectory(prefix="backbone-") as place:
        yield save_bert(Path(place) / shape, SHAPES[shape])


def long_sentences(count: int) -> list[str]:
    """Return texts of about 24 tokens: two sentences each."""
    rows = endless_rows("sentences")
    return [f"{first} {second}" for (first,), (second,) in islice(zip(rows, rows, strict=True), count)]


def mixed_texts(count: int, seed: int = 1) -> list[str]:
    """Return distinct texts of 1 to 100 words, the same on every machine, each doubling equally frequent.

    A text is a stretch of the sample's sentences joined into one long text; where it starts and how long it is are
    drawn, and drawn again if the text was there before.
    """
    rows = islice(endless_rows("sentences"), max(count // 2, 1000))
    words = " ".join(text for row in rows for text in row).split()
    rng = Random(f"cse mixed texts {seed}")
    found: dict[str, None] = {}
    while len(found) < count:
        length = min(int((LONGEST + 1) ** rng.random()), LONGEST)
        start = int(rng.random() * (len(words) - length))
        found[" ".join(words[start : start + length])] = None
    return list(found)


def save_bert(folder: Path, shape: dict[str, int], kind: type[PreTrainedModel] = BertModel) -> Path:
    """Save a BERT of random weights, which do not affect speed or memory, with a tokenizer of its own.

    It lies there as sentence-transformers would save it, with mean pooling and vectors of unit length.

    Args:
        shape: arguments of ``BertConfig``, see ``SHAPES``.
        kind: ``BertModel``, or ``BertForMaskedLM`` for one with its head.
    """
    torch.manual_seed(0)
    kind(BertConfig(**shape)).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [*_SPECIAL.values(), "[MASK]"]
    tokenizer.train_from_iterator(
        long_sentences(2000), trainers.WordPieceTrainer(vocab_size=30522, special_tokens=special, show_progress=False)
    )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = _SPECIAL | {"mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling), encoding="utf-8")
    kinds = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")]
    places = ["", "1_Pooling", "2_Normalize"]
    modules = [{"idx": at, "name": str(at), "path": places[at], "type": kind} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return folder
