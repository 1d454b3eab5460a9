"""The backbone that a benchmark runs on: one that exists, or random weights, which do not affect speed."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.random_bert import SHAPES, save_bert
from cse.errors import CseError, nearest
from cse.model.backbone_files import find_backbone
from cse.model.named import MINILM

RANDOM = "random:"


def add_backbone(parser: argparse.ArgumentParser) -> None:
    """Add ``--backbone`` and ``--device``."""
    parser.add_argument(
        "--backbone", default=MINILM, help=f"folder, hub id, or {RANDOM}{{{','.join(SHAPES)}}}; default: %(default)s"
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: auto")


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
