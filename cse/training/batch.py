"""From rows to the batch that the losses see: tokenised once, stored flat, cut into padded slices, staged and encoded.

A batch is encoded in slices, once or twice. Gao et al. 2021 (GradCache): the gradient of a contrastive loss reaches the
weights only through the embeddings. A large batch can therefore be encoded slice by slice without keeping activations;
the loss uses all embeddings, and the backward pass encodes the slices again, one at a time, to carry the gradient of
the embeddings to the weights. The gradient is exact only if the second pass drops the same units as the first, so the
random states of CPU and GPU are saved. Where positives differ by dropout alone, different units would silently make it
a different method. ``torch.utils.checkpoint`` goes around whole slices, so this works for terms with their own passes,
too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from cse.choices import LABELS
from cse.data.store import texts_in
from cse.losses.group import ALONE, Group, GroupLayout
from cse.losses.shared import Batch, PaddedRows, Slice, project_in_order, run_twice
from cse.model.passes import Constants, Packed, Prefix, TokenBatch, pack_rows
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.tokens import Tokenizers, Tokens, tokenize
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.augment import ChangeIds, alteration, change_ids
from cse.training.batches import RowOrder

R = TypeVar("R")

_CHUNK = 10_000

# column that each copy of a row reads; a sentence is its own positive and differs by dropout alone
COLUMN_OF_COPY = {"sentences": (0, 0), "pairs": (0, 1), "triplets": (0, 1, 2), "labelled": (0, 1)}


@dataclass(frozen=True)
class TokenTable:
    """Every training row, tokenised; a column per view (the same twice if a sentence is its own positive).

    Attributes:
        labels: index into ``LABELS`` for each row of labelled data, or the number of the label that a row's texts
            have, int64 ``(rows,)``; None if the loss needs neither.
    """

    columns: tuple[Tokens, ...]
    pad_id: int
    labels: np.ndarray | None = None
    keys: np.ndarray | None = None
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.columns[0].starts) - 1

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

    def column(number: int, which: int, change: Callable[[str, int], str] | None) -> Tokens:
        name, own, parts = rows.column_names[number], Tokenizers(tokenizers[which]), []
        for start in tqdm(range(0, len(rows), _CHUNK), desc=f"tokenise {name}", disable=None, leave=False):
            texts: list[str] = rows[name].slice(start, _CHUNK).to_pylist()
            if change is not None:
                texts = [change(text, row) for row, text in enumerate(texts, start=start)]
            if before:
                texts = [before[number] + text for text in texts]
            parts.append(tokenize(texts, [max_length] * len(texts), own))
        ids = np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)])
        starts = np.concatenate([[0], *(part.lengths for part in parts)]).cumsum()
        return Tokens(ids, starts, sum(part.truncated for part in parts))

    wanted = [
        (number, min(copy, len(tokenizers) - 1), second_text if copy == 1 else None)
        for copy, number in enumerate(COLUMN_OF_COPY[view][:views])
    ]
    made = {one: column(*one) for one in dict.fromkeys(wanted)}
    labels = None
    if view == "labelled":
        labels = np.array([LABELS.index(label) for label in texts_in(rows, "label")], np.int64)
    return TokenTable(tuple(made[one] for one in wanted), pad_id, labels)


# ---- slices ---------------------------------------------------------------------------------------------------------

_ALIKE, _ALIKE_TOKENS = 8, 256  # tokens of a row and of a batch are multiples, to have few shapes

# A slice costs its padded tokens and a fixed share: on a GPU launches, on a CPU Python and buffers. In tokens of a
# model of width 384: measured on two cores (MiniLM: 45 ms a slice, 0.07 ms a token); for a GPU reckoned, not measured
# (60 launches of 6 microseconds a layer, at 400 TFLOP/s).
_SLICE_TOKENS = {"cpu": 600, "cuda": 24_000}
_WIDTH = 384
_SHARED_OUT = 4  # slices for several workers, or a multiple: each needs an equal share


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
    starts = np.concatenate([column.starts[rows] for column in table.columns])
    lengths = np.concatenate([column.starts[rows + 1] for column in table.columns]) - starts
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


# ---- a step ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A step's rows on the host, padded, and what a batch must know of them.

    Attributes:
        own: this worker's slices.
        sizes: rows of each worker's slices; ``anchor_sizes``: the anchors among them.
        packed: whether the layers see the real tokens of the only slice, and no padding.
        arrays: all numbers that the step computes on, in the order in which ``Batcher.encode`` takes their tensors.
    """

    rows: np.ndarray
    own: Sequence[PaddedRows]
    sizes: list[int]
    anchor_sizes: list[int]
    labelled: bool
    packed: bool
    arrays: list[np.ndarray]
    longest: int
    group: Group
    step: int
    epoch: int
    real_tokens: int
    source: int

    @property
    def shape(self) -> tuple[object, ...]:
        """What two batches share if their steps are the same but for the numbers in ``arrays``."""
        return self.source, self.packed, self.longest, *(array.shape for array in self.arrays)


@dataclass(frozen=True, kw_only=True)
class Batcher:
    """Makes the batches of a run: stages their rows on the host and encodes them on the device.

    Attributes:
        alike: make few shapes, for ``Captured``, and in bf16 pack rows if the encoder ``packs``.
    """

    encoder: SentenceEncoder
    settings: TrainSettings
    augment: AugmentSettings
    device: torch.device
    bf16: bool
    group: Group = ALONE
    alike: bool = False

    def stage(self, table: TokenTable, rows: np.ndarray, *, step: int, epoch: int, source: int = 0) -> Staged:
        """Pad all views of a batch; in ``encode`` every copy of a sentence gets its own dropout."""
        encoder, settings, group = self.encoder, self.settings, self.group
        rng = np.random.default_rng([settings.seed, step])  # the same for all workers
        change = change_ids(self.augment, encoder.backbone, rng)
        if self.alike:
            count, most = settings.row_groups or 1, encoder.max_length
            padded = pad_in_groups(table, rows, count, change, multiple=_ALIKE, most=most)
        else:
            wanted = slices_of(settings, len(table.columns) * len(rows), group.size)
            cost = slice_cost(encoder.backbone.hidden_size, self.device)
            padded = pad_in_groups(table, rows, wanted, change, cost=cost)
        if len(padded) < group.size:
            group = ALONE  # an epoch's last batch may have fewer slices than workers: every worker encodes all of it
        longest = max(part.ids_BL.shape[1] for part in padded)
        shares = [[padded[number] for number in numbers] for numbers in group.deal(len(padded))]
        places = [np.concatenate([part.places for part in share]) for share in shares]
        anchors = [part[part < len(rows)] for part in places]
        own = shares[group.rank]
        arrays = [np.concatenate(each).argsort() for each in (places, anchors)]
        arrays += [array for part in own for array in (part.ids_BL, part.mask_BL, part.views, part.places)]
        arrays += [] if table.labels is None else [table.labels[rows]]
        packed = self.alike and self.bf16 and len(own) == 1 and encoder.packs(self.device, longest)
        arrays += pack_rows(own[0].mask_BL, _ALIKE_TOKENS) if packed else []
        return Staged(
            rows=rows,
            own=own,
            sizes=[len(part) for part in places],
            anchor_sizes=[len(part) for part in anchors],
            labelled=table.labels is not None,
            packed=packed,
            arrays=arrays,
            longest=longest,
            group=group,
            step=step,
            epoch=epoch,
            real_tokens=sum(int(part.mask_BL.sum()) for part in padded),
            source=source,
        )

    def encode(self, staged: Staged, tensors: Sequence[torch.Tensor]) -> Batch:
        """Encode a staged batch, whose ``arrays`` are ``tensors`` on the device."""
        encoder, prompt, given = self.encoder, self.encoder.prompt, iter(tensors)
        twice = self.settings.mini_batch_size is not None
        order, anchor_order = islice(given, 2)
        moved = [tuple(islice(given, 4)) for _ in staged.own]
        labels_B = next(given) if staged.labelled else None
        packed = None
        if staged.packed:
            dropped = prompt.dropout if prompt is not None and prompt.training else 0.0
            places_T, starts = given
            packed = Packed(places_T, starts, staged.longest, dropped)

        def encode(part: PaddedRows, tensors: Sequence[torch.Tensor]) -> Slice:
            ids_BL, mask_BL, view_B, places = tensors
            template_B = view_B.clamp(max=len(encoder.templates) - 1) if encoder.templates else None
            alter = alteration(self.augment, view_B)

            def draw() -> Prefix | None:
                return encoder.prefix(len(part.ids_BL))

            if not twice:
                # the packed kernel drops the prompt's entries itself
                prefix = draw() if packed is None or prompt is None else prompt.blocks(encoder.transformer)
                constants = Constants(prefix, noise_TND)
                tokens = encoder.pooled(ids_BL, mask_BL, constants, template_B=template_B, alter=alter, packed=packed)
                return Slice(part, places, ids_BL, mask_BL, lambda: prefix, tokens, twice)

            def embed(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> TokenBatch:
                made = encoder.pooled(ids_BL, mask_BL, Constants(draw(), noise_TND), template_B=template_B, alter=alter)
                local_BLD = made.local_BLD if encoder.cnn is not None else None
                return TokenBatch([], local_BLD, made.pooled_BD, made.noise_BD)

            before = RandomState(ids_BL.device)  # a prompt for all rows in all layers is large: it is drawn again
            tokens = run_twice(embed, ids_BL, mask_BL)
            return Slice(part, places, ids_BL, mask_BL, lambda: before.replay(draw), tokens, twice)

        with torch.autocast(order.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            noise_TND = encoder.noise(staged.longest + 1) if encoder.denoise != "none" else None
            slices = [encode(part, tensors) for part, tensors in zip(staged.own, moved, strict=True)]
            layout = GroupLayout(staged.group, staged.sizes, order)
            projected_XD = project_in_order(encoder, layout, [piece.tokens for piece in slices])
        return Batch(
            rows=staged.rows,
            slices=slices,
            layout=layout,
            anchors=GroupLayout(staged.group, staged.anchor_sizes, anchor_order),
            longest=staged.longest,
            projected_XD=projected_XD,
            labels_B=labels_B,
            step=staged.step,
            epoch=staged.epoch,
            source=staged.source,
        )


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
