"""Training rows as token ids: tokenised once, stored flat, and cut into padded slices of similar length."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from cse.choices import LABELS
from cse.data.store import texts_in
from cse.files import write_array
from cse.outputs import Kind, publish_folder
from cse.settings.train import TrainSettings
from cse.training.batches import RowOrder

_CHUNK = 10_000
_TABLE = "table.json"

# column that each copy of a row reads; a sentence is its own positive and differs by dropout alone
COLUMN_OF_COPY = {"sentences": (0, 0), "pairs": (0, 1), "triplets": (0, 1, 2), "labelled": (0, 1)}

# token ids of one row, its view -> token ids for this step
ChangeIds = Callable[[np.ndarray, int], np.ndarray]

# A slice costs its padded tokens and a fixed share: on a GPU launches, on a CPU Python and buffers. In tokens of a
# model of width 384: measured on two cores (MiniLM: 45 ms a slice, 0.07 ms a token); for a GPU reckoned, not measured
# (60 launches of 6 microseconds a layer, at 400 TFLOP/s).
_SLICE_TOKENS = {"cpu": 600, "cuda": 24_000}
_WIDTH = 384
_SHARED_OUT = 4  # slices for several workers, or a multiple: each needs an equal share


@dataclass(frozen=True)
class TokenColumn:
    """Token ids of one column: row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: np.ndarray  # int32 (tokens,)
    offsets: np.ndarray  # int64 (rows + 1,)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of ``rows``, int64 ``(len(rows),)``."""
        return self.offsets[rows + 1] - self.offsets[rows]


@dataclass(frozen=True)
class TokenTable:
    """Every training row, tokenised; a column per view (the same twice if a sentence is its own positive).

    Attributes:
        labels: index into ``LABELS`` for each row of labelled data, or the number of the label that a row's texts
            have, int64 ``(rows,)``; None if the loss needs neither.
    """

    columns: tuple[TokenColumn, ...]
    pad_id: int
    labels: np.ndarray | None = None
    keys: np.ndarray | None = None
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.columns[0].offsets) - 1

    @property
    def rows(self) -> RowOrder:
        return RowOrder(len(self), self.keys, self.weight)


def tokenise(
    rows: pa.Table,
    view: str,
    tokenizers: Sequence[Tokenizer],
    *,
    max_length: int,
    pad_id: int,
    views: int | None = None,
    before: Sequence[str] = (),
    second_text: Callable[[str, int], str] | None = None,
) -> TokenTable:
    """Tokenise all columns of the training rows once, by one tokenizer or one per view (two templates)."""

    def column(number: int, which: int, change: Callable[[str, int], str] | None) -> TokenColumn:
        name, tokenizer = rows.column_names[number], Tokenizer.from_str(tokenizers[which].to_str())
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        pieces, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        for start in tqdm(range(0, len(rows), _CHUNK), desc=f"tokenise {name}", disable=None, leave=False):
            texts: list[str] = rows[name].slice(start, _CHUNK).to_pylist()
            if change is not None:
                texts = [change(text, row) for row, text in enumerate(texts, start=start)]
            if before:
                texts = [before[number] + text for text in texts]
            encodings = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
            pieces.append(np.fromiter((i for ids in encodings for i in ids), dtype=np.int32))
            lengths.append(np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings)))
        return TokenColumn(np.concatenate(pieces), np.concatenate([[0], *lengths]).cumsum())

    wanted = [
        (number, min(copy, len(tokenizers) - 1), second_text if copy == 1 else None)
        for copy, number in enumerate(COLUMN_OF_COPY[view][:views])
    ]
    made = {one: column(*one) for one in dict.fromkeys(wanted)}
    labels = None
    if view == "labelled":
        labels = np.array([LABELS.index(label) for label in texts_in(rows, "label")], np.int64)
    return TokenTable(tuple(made[one] for one in wanted), pad_id, labels)


def shared_table(folder: Path, make: Callable[[], TokenTable]) -> TokenTable:
    """Return a table of memory-mapped arrays, which the first process writes into the folder while others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not (folder / _TABLE).is_file():
            with publish_folder(folder, Kind.TOKENS) as target:
                _write_table(make(), target)
    facts = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
    found = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}
    columns = {number: TokenColumn(found[f"ids-{number}"], found[f"offsets-{number}"]) for number in facts["columns"]}
    labels, keys = (np.array(found[name]) if name in found else None for name in ("labels", "keys"))
    return TokenTable(tuple(columns[number] for number in facts["columns"]), facts["pad_id"], labels, keys)


def _write_table(table: TokenTable, folder: Path) -> None:
    arrays: dict[str, np.ndarray | None] = {"labels": table.labels, "keys": table.keys}
    numbers: dict[int, int] = {}  # write a repeated column only once
    for column in table.columns:
        number = numbers.setdefault(id(column), len(numbers))
        arrays |= {f"ids-{number}": column.ids, f"offsets-{number}": column.offsets}
    for name, array in arrays.items():
        if array is not None:
            write_array(folder / f"{name}.npy", array)
    facts = {"columns": [numbers[id(column)] for column in table.columns], "pad_id": table.pad_id}
    (folder / _TABLE).write_text(json.dumps(facts), encoding="utf-8")


# ---- slices of a batch --------------------------------------------------------------------------------------------


def slice_cost(width: int, device: torch.device) -> float:
    """Return the fixed cost of a slice in tokens, for a backbone of a width on a device."""
    return _SLICE_TOKENS["cpu" if device.type == "cpu" else "cuda"] * (_WIDTH / width) ** 2


def slices_of(settings: TrainSettings, sentences: int, workers: int) -> int | None:
    """Return the slices of a batch, a multiple of the number of workers; None: as many as cost least."""
    groups, most = settings.row_groups, settings.mini_batch_size
    if groups is None and most is None and workers == 1:
        return None
    least = 1 if most is None else math.ceil(sentences / most)
    return math.ceil(max(groups or (1 if workers == 1 else _SHARED_OUT), least) / workers) * workers


@dataclass(frozen=True)
class PaddedRows:
    """A slice of a batch, padded to its own longest row.

    Attributes:
        places: indices of these rows in the flattened batch ``(V * B)``.
        starts: where each row starts in its column's flat ids, int64 ``(B,)``.
    """

    places: np.ndarray
    ids_BL: np.ndarray
    mask_BL: np.ndarray
    views: np.ndarray
    starts: np.ndarray

    @property
    def index_BL(self) -> np.ndarray:
        """Index of each token in its column's flat ids."""
        return self.starts[:, None] + np.arange(self.ids_BL.shape[1])


def pad_in_groups(
    table: TokenTable,
    rows: np.ndarray,
    groups: int | None,
    change: ChangeIds | None = None,
    *,
    cost: float = 0.0,
    multiple: int = 1,
    most: int = 0,
) -> list[PaddedRows]:
    """Concatenate all views of a batch, sort them by length and cut them into padded slices.

    This changes only the padding, not which rows share a batch (and so are each other's negatives).

    Args:
        groups: number of slices of equally many rows; 1 pads everything to the longest row, as the papers' code does.
            None: the slices that cost least, see ``cheapest_cuts``.
        multiple: of which a slice's padded length is one, in tokens, unless that is more than ``most``.
    """
    starts = np.concatenate([column.offsets[rows] for column in table.columns])
    lengths = np.concatenate([column.lengths(rows) for column in table.columns])
    views = np.repeat(np.arange(len(table.columns)), len(rows))
    changed: list[np.ndarray] = []
    if change is not None:
        for view, start, length in zip(views, starts, lengths, strict=True):
            changed.append(change(table.columns[view].ids[start : start + length], int(view)))
        lengths = np.fromiter(map(len, changed), dtype=np.int64, count=len(changed))
    order = np.argsort(lengths, kind="stable")
    if groups is None:
        parts = np.split(order, cheapest_cuts(lengths[order], cost))
    else:
        parts = np.array_split(order, min(groups, len(order)))
    slices = []
    for places in parts:
        longest = int(lengths[places[-1]])
        length = max(longest, min(-(-longest // multiple) * multiple, most))
        mask_BL = np.arange(length) < lengths[places, None]
        ids_BL = np.full(mask_BL.shape, table.pad_id, dtype=np.int64)
        padded = PaddedRows(places, ids_BL, mask_BL.astype(np.int64), views[places], starts[places])
        if change is not None:
            ids_BL[mask_BL] = np.concatenate([changed[place] for place in places])
        else:
            index_BL = padded.index_BL
            for number, column in enumerate(table.columns):
                own_BL = mask_BL & (padded.views[:, None] == number)
                ids_BL[own_BL] = column.ids[index_BL[own_BL]]
        slices.append(padded)
    return slices


def cheapest_cuts(lengths: np.ndarray, cost: float) -> list[int]:
    """Return the rows at which a new slice begins, so that padded tokens plus ``cost`` per slice are fewest.

    ``lengths`` are the tokens of each row, rising.
    """
    ends = np.append(np.flatnonzero(np.diff(lengths)) + 1, len(lengths))  # a cut between equal lengths saves nothing
    best, begin = [0.0], [0]
    for end in ends:
        starts = np.concatenate([[0], ends[: len(best) - 1]])
        totals: np.ndarray = np.asarray(best) + (end - starts) * lengths[end - 1] + cost
        chosen = int(totals.argmin())
        best.append(float(totals[chosen]))
        begin.append(chosen)
    cuts: list[int] = []
    piece = begin[-1]
    while piece:
        cuts.append(int(ends[piece - 1]))
        piece = begin[piece]
    return cuts[::-1]
