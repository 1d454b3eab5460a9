"""The rows that the benchmarks train on and the sentences that they encode: a user's, or generated ones."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import pyarrow as pa
from tokenizers import Tokenizer

from cse.data.sample import sample_rows
from cse.data.shape import read_rows
from cse.data.store import VIEW_COLUMNS
from cse.errors import CseError, nearest
from cse.model.backbone import plain_copy
from cse.model.backbone_files import BackboneFiles, read_tokenizer


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Add ``--triplets``."""
    parser.add_argument("--triplets", type=Path, metavar="CSV", help="triplets; default: generated")


def rows_of(view: str, count: int, triplets: Path | None) -> pa.Table:
    """Return training rows of a view.

    Args:
        view: ``triplets`` or ``sentences``; the latter are the anchors of the triplets.
        triplets: file; None: generated.
    """
    if triplets is not None and not triplets.is_file():
        raise CseError(f"--triplets: no file {triplets}{nearest(str(triplets), map(str, triplets.parent.glob('*')))}")
    source = sample_rows(view, count, seed=1) if triplets is None else (row.texts for row in read_rows(triplets, view))
    names = VIEW_COLUMNS[view]
    rows = [dict(zip(names, texts, strict=True)) for texts in islice(source, count)]
    if len(rows) < count:
        raise CseError(f"{triplets}: {len(rows):,} rows, but {count:,} are wanted; give a longer file or fewer steps")
    return pa.Table.from_pylist(rows)


def sentences_of(count: int, triplets: Path | None) -> list[str]:
    """Return distinct sentences, those of the rows of triplets."""
    rows = rows_of("triplets", count, triplets)  # a row has a distinct sentence at least, or nearly
    found = list(dict.fromkeys(text for row in rows.to_pylist() for text in row.values()))
    if len(found) < count:
        raise CseError(f"{triplets}: {len(found):,} distinct sentences, but {count:,} are wanted; give a longer file")
    return found[:count]


def lengths_of(texts: list[str], folder: Path, limit: int) -> list[int]:
    """Return the real tokens of each text with the tokenizer of a backbone's folder, see ``lengths_with``."""
    return lengths_with(read_tokenizer(BackboneFiles(str(folder), "main", folder, "")), texts, limit)


def lengths_with(tokenizer: Tokenizer, texts: list[str], limit: int) -> list[int]:
    """Return the real tokens of each text, special tokens included, cut at ``limit``."""
    return [min(len(found.ids), limit) for found in plain_copy(tokenizer).encode_batch(texts)]
