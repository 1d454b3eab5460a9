"""The backbone that a benchmark runs on: one that exists, or random weights, which do not affect speed."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from cse.errors import CseError, nearest
from cse.model.backbone_files import MINILM, find_backbone

RANDOM = "random:"
SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
# what a folder of sentence-transformers has beside the weights; the peers read their pooling there
_DECLARED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "modules.json")
_POOLING = Path("1_Pooling/config.json")


def add_backbone(parser: argparse.ArgumentParser) -> None:
    """Add ``--backbone`` and ``--device``."""
    parser.add_argument(
        "--backbone", default=MINILM, help=f"folder, hub id, or {RANDOM}{{{','.join(SHAPES)}}}; default: %(default)s"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto")


@contextmanager
def backbone_folder(name: str) -> Iterator[Path]:
    """Yield the folder of a backbone; one of random weights is deleted afterwards.

    Raises:
        CseError: there is no such backbone or shape.
    """
    if not name.startswith(RANDOM):
        yield find_backbone(name).folder
        return
    shape = name.removeprefix(RANDOM)
    if shape not in SHAPES:
        raise CseError(f"--backbone: no shape {shape!r}{nearest(shape, SHAPES)}; give {', '.join(SHAPES)}")
    with tempfile.TemporaryDirectory(prefix="backbone-") as place:
        folder = Path(place) / shape
        save_random(folder, SHAPES[shape])
        yield folder


def save_random(folder: Path, shape: dict[str, int]) -> None:
    """Save a BERT with random weights, mean pooling and MiniLM's tokenizer."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    BertModel(BertConfig(**shape)).save_pretrained(folder)
    source = find_backbone(MINILM).folder
    for name in _DECLARED:
        shutil.copyfile(source / name, folder / name)
    (folder / _POOLING).parent.mkdir()
    pooling = json.loads((source / _POOLING).read_text(encoding="utf-8"))
    pooling["word_embedding_dimension"] = shape["hidden_size"]
    (folder / _POOLING).write_text(json.dumps(pooling), encoding="utf-8")
