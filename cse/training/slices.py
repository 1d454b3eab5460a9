"""Cut a batch into slices of similar length, which are padded and encoded one at a time, once or twice (GradCache).

Gao et al. 2021: the gradient of a contrastive loss reaches the weights only through the embeddings. A large batch can
therefore be encoded slice by slice without keeping activations; the loss uses all embeddings, and the backward pass
encodes the slices again, one at a time, to carry the gradient of the embeddings to the weights. The gradient is exact
only if the second pass drops the same units as the first, so the random states of CPU and GPU are saved. Where
positives differ by dropout alone, different units would silently make it a different method. ``torch.utils.checkpoint``
goes around whole slices, so this works for terms with their own passes, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from cse.training.tokens import TokenTable

# token ids of one row, its view -> token ids for this step
ChangeIds = Callable[[np.ndarray, int], np.ndarray]

# A slice costs its padded tokens and a fixed share: on a GPU launches, on a CPU Python and buffers. In tokens of a
# model of width 384: measured on two cores (MiniLM: 45 ms a slice, 0.07 ms a token); for a GPU reckoned, not measured
# (60 launches of 6 microseconds a layer, at 400 TFLOP/s).
_SLICE_TOKENS = {"cpu": 600, "cuda": 24_000}
_WIDTH = 384
_SHARED_OUT = 4  # slices for several workers, or a multiple: each needs an equal share


def slice_cost(width: int, device: torch.device) -> float:
    """Return the fixed cost of a slice in tokens, for a backbone of a width on a device."""
    return _SLICE_TOKENS["cpu" if device.type == "cpu" else "cuda"] * (_WIDTH / width) ** 2


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into slices that are encoded one at a time.

    Attributes:
        row_groups: number of length-sorted slices, each padded to its own longest row; None: as many as cost least.
        mini_batch_size: most sentences per slice; discards activations (GradCache). None: no limit, keep activations.
    """

    row_groups: int | None
    mini_batch_size: int | None

    def slices(self, sentences: int, workers: int) -> int | None:
        """Return the number of slices, a multiple of the number of workers; None: as many as cost least."""
        if self.row_groups is None and self.mini_batch_size is None and workers == 1:
            return None
        least = 1 if self.mini_batch_size is None else math.ceil(sentences / self.mini_batch_size)
        wanted = self.row_groups or (1 if workers == 1 else _SHARED_OUT)
        return math.ceil(max(wanted, least) / workers) * workers


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
        if change is not None:
            ids_BL[mask_BL] = np.concatenate([changed[place] for place in places])
        else:
            index_BL = starts[places, None] + np.arange(mask_BL.shape[1])
            for number, column in enumerate(table.columns):
                own_BL = mask_BL & (views[places, None] == number)
                ids_BL[own_BL] = column.ids[index_BL[own_BL]]
        slices.append(PaddedRows(places, ids_BL, mask_BL.astype(np.int64), views[places], starts[places]))
    return slices


def cheapest_cuts(lengths: np.ndarray, cost: float) -> list[int]:
    """Return where to cut rows, so that padded tokens plus ``cost`` per slice are fewest.

    Args:
        lengths: tokens of each row, rising.

    Returns:
        Rising row numbers at which a new slice begins; empty for one slice.
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


R = TypeVar("R")


def run_twice(run: Callable[..., R], *tensors: torch.Tensor) -> R:
    """Return ``run(*tensors)`` without storing activations; the backward pass recomputes them."""
    made: Any = checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=True)
    return made


class RandomState:
    """Torch's current random state on the CPU and a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def replay(self, draw: Callable[[], R]) -> R:
        """Return ``draw()`` run from this saved state; leave the current random state unchanged."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            return draw()
