"""Corrupted copies of rows for masked language modelling and replaced-token detection.

Every random choice is a hash of (seed, epoch, view, index of the token in its column), so corrupting a batch during
training gives the same result as corrupting all rows beforehand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from cse.errors import CseError
from cse.files import write_array
from cse.model.backbone import Backbone
from cse.model.generator import Generator
from cse.model.on_device import on_device, pinned
from cse.training.slices import PaddedRows
from cse.training.tokens import TokenColumn, TokenTable

_CHUNK = 256  # rows per generator pass when corrupting all rows beforehand
_DIGESTS = "rows.json"
_AGAIN = "run `cse corrupt` (or `dvc repro`) again"
_SELECT, _TREAT, _RANDOM, _CHOOSE = range(4)  # streams of random numbers


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary facts that masking needs."""

    size: int
    mask: int
    special: tuple[int, ...]

    @classmethod
    def of(cls, backbone: Backbone) -> Vocabulary:
        """Return these facts for a backbone."""
        special = backbone.special_ids
        return cls(backbone.tokenizer.get_vocab_size(), special["mask"], (*special.values(), backbone.pad_id))


@dataclass(frozen=True)
class Corruption:
    """How tokens are replaced (DiffCSE's code; methods of D2CSE).

    Attributes:
        mask_share: share of tokens masked for the generator.
        choice: ``argmax`` or ``sample``.
        positions: where to use the generator's tokens, ``all`` or ``masked``.
        protect_special: whether to keep special tokens other than the first, which always stays.
    """

    mask_share: float
    choice: str = "argmax"
    positions: str = "all"
    protect_special: bool = False
    seed: int = 42


def uniform(seed: int, epoch: int, view_B: np.ndarray, index_BL: np.ndarray, stream: int) -> np.ndarray:
    """Return one number in [0, 1) per token, ``(B, L)`` float64, from a hash (splitmix64) of its index."""
    word = int(np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0])
    with np.errstate(over="ignore"):
        x = index_BL.astype(np.uint64) * np.uint64(8) + view_B.astype(np.uint64)[:, None] + np.uint64(word)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x + np.uint64(0x9E3779B97F4A7C15)) if shift == 30 else x
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53


def mask_tokens(
    ids_BL: np.ndarray,
    mask_BL: np.ndarray,
    index_BL: np.ndarray,
    view_B: np.ndarray,
    vocabulary: Vocabulary,
    *,
    share: float,
    seed: int,
    epoch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a share of the real, non-special tokens: 80 % become the mask, 10 % a random token, 10 % stay.

    Args:
        mask_BL: 1 for real tokens.
        index_BL: index of each token in its column's flat ids.
        view_B: view of each row.

    Returns:
        Ids for the language model and a boolean mask of the chosen tokens, both ``(B, L)``.
    """
    choices = [uniform(seed, epoch, view_B, index_BL, stream) for stream in (_SELECT, _TREAT, _RANDOM)]
    chosen_BL = (mask_BL == 1) & ~np.isin(ids_BL, vocabulary.special) & (choices[0] < share)
    chosen_BL &= ids_BL < vocabulary.size  # trained pieces of a template stand beyond the vocabulary
    random_BL = (choices[2] * vocabulary.size).astype(np.int64)
    treated_BL = np.where(choices[1] < 0.8, vocabulary.mask, np.where(choices[1] < 0.9, random_BL, ids_BL))
    return np.where(chosen_BL, treated_BL, ids_BL), chosen_BL


def corrupt(
    ids_BL: np.ndarray,
    mask_BL: np.ndarray,
    index_BL: np.ndarray,
    view_B: np.ndarray,
    *,
    how: Corruption,
    vocabulary: Vocabulary,
    generator: Generator,
    epoch: int,
) -> torch.Tensor:
    """Replace tokens with a generator's proposals; keep the first token and padding.

    Args:
        ids_BL: token ids, int64.
        mask_BL: 1 for real tokens.
        index_BL: index of each token in its column's flat ids.
        view_B: view of each row.
        epoch: passes over the rows before this one.

    Returns:
        Ids ``(B, L)``, int64, on the generator's device.
    """
    masked_BL, chosen_BL = mask_tokens(
        ids_BL, mask_BL, index_BL, view_B, vocabulary, share=how.mask_share, seed=how.seed, epoch=epoch
    )
    draw_BL = uniform(how.seed, epoch, view_B, index_BL, _CHOOSE)
    draws = how.choice == "sample" or not generator.reads_context
    proposed_BL = generator.propose(masked_BL, mask_BL, draw_BL if draws else None)
    everywhere = how.positions == "all" and generator.reads_context
    taken_BL = (mask_BL == 1) if everywhere else chosen_BL
    if how.protect_special:
        taken_BL = taken_BL & ~np.isin(ids_BL, vocabulary.special)
    taken_BL[:, 0] = False
    taken, kept = (pinned(array, proposed_BL.device) for array in (taken_BL, ids_BL))
    return torch.where(taken, proposed_BL, kept)


# a slice, the device of the result, and the epoch -> corrupted ids
Source = Callable[[PaddedRows, torch.device, int], torch.Tensor]


def on_the_fly(how: Corruption, vocabulary: Vocabulary, generator: Generator) -> Source:
    """Return a source that corrupts each slice during training."""

    def source(rows: PaddedRows, device: torch.device, epoch: int) -> torch.Tensor:
        corrupted_BL = corrupt(
            rows.ids_BL,
            rows.mask_BL,
            rows.index_BL,
            rows.views,
            how=how,
            vocabulary=vocabulary,
            generator=generator,
            epoch=epoch,
        )
        own = corrupted_BL.device.type == device.type
        return corrupted_BL if own else pinned(corrupted_BL.cpu().numpy(), device)

    return source


def corrupt_all(
    table: TokenTable,
    folder: Path,
    *,
    how: Corruption,
    vocabulary: Vocabulary,
    generator: Generator,
    epochs: int,
    progress: bool = False,
) -> None:
    """Corrupt every view of every row once per epoch, into ``epoch-E-view-V.npy`` (int32, flat like the column).

    ``rows.json`` maps each file to a hash of its source tokens.
    """
    digests = {}
    with tqdm(
        total=epochs * len(table.columns) * len(table), desc="corrupt", unit=" rows", disable=not progress
    ) as bar:
        for epoch in range(epochs):
            for view, column in enumerate(table.columns):
                path = _file(folder, epoch, view)
                flat = np.zeros(column.ids.shape, np.int32)  # not a writable memory map: a full disk would kill us
                for rows, starts, ids_BL, mask_BL in _by_length(column, table.pad_id):
                    index_BL = starts[:, None] + np.arange(ids_BL.shape[1])
                    corrupted_BL = corrupt(
                        ids_BL,
                        mask_BL,
                        index_BL,
                        np.full(len(rows), view),
                        how=how,
                        vocabulary=vocabulary,
                        generator=generator,
                        epoch=epoch,
                    ).cpu()
                    flat[index_BL[mask_BL == 1]] = corrupted_BL.numpy()[mask_BL == 1]
                    bar.update(len(rows))
                write_array(path, flat)
                digests[path.name] = _digest(column)
    (folder / _DIGESTS).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")


def prepared(folder: Path, table: TokenTable, *, epochs: int) -> Source:
    """Return a source that reads the output of ``corrupt_all``; maps the files instead of loading them."""
    flat: dict[tuple[int, int], np.ndarray] = {}
    try:
        digests = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CseError(f"{folder / _DIGESTS}: missing or cut off; {_AGAIN}") from None
    for epoch in range(epochs):
        for view, column in enumerate(table.columns):
            path = _file(folder, epoch, view)
            try:
                flat[epoch, view] = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError):
                raise CseError(f"{path}: missing or cut off; {_AGAIN}") from None
            if flat[epoch, view].shape != column.ids.shape or digests.get(path.name) != _digest(column):
                raise CseError(f"{path}: was made for other rows; {_AGAIN}")

    def source(rows: PaddedRows, device: torch.device, epoch: int) -> torch.Tensor:
        result = rows.ids_BL.copy()
        lengths = rows.mask_BL.sum(axis=1)
        for line, (start, length, view) in enumerate(zip(rows.starts, lengths, rows.views, strict=True)):
            result[line, :length] = flat[epoch, view][start : start + length]
        return on_device([result], device)[0]

    return source


def _file(folder: Path, epoch: int, view: int) -> Path:
    return folder / f"epoch-{epoch}-view-{view}.npy"


def _digest(column: TokenColumn) -> str:
    return hashlib.sha256(column.offsets.tobytes() + column.ids.tobytes()).hexdigest()


def _by_length(column: TokenColumn, pad_id: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the row numbers, starts, ids and mask of chunks of rows of similar length."""
    lengths = np.diff(column.offsets)
    order = np.argsort(lengths, kind="stable")
    for first in range(0, len(order), _CHUNK):
        rows = order[first : first + _CHUNK]
        columns = np.arange(lengths[rows].max())
        mask_BL = columns < lengths[rows, None]
        ids_BL = np.full(mask_BL.shape, pad_id, np.int64)
        starts = column.offsets[rows]
        ids_BL[mask_BL] = column.ids[(starts[:, None] + columns)[mask_BL]]
        yield rows, starts, ids_BL, mask_BL.astype(np.int64)
