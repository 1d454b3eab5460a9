"""The rows of one step with their encoder outputs: the input of every loss term."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from cse.model.attention import Prefix
from cse.model.passes import Alteration, Constants, Tokens
from cse.model.sentence_encoder import SentenceEncoder
from cse.training.augment import REPEAT_RULES, cut_features, shuffled_positions
from cse.training.group import ALONE, Group, Layout
from cse.training.replay import RandomState, run_twice
from cse.training.tokens import ChangeIds, PaddedRows, TokenTable, pad_in_groups

R = TypeVar("R")


@dataclass(frozen=True)
class Augmentation:
    """How the copies of a sentence differ, on top of dropout.

    Attributes:
        repeat_share: largest share of word pieces repeated in the second copy.
        repeat_rule: how many to repeat, ``paper`` or ``released``, see ``repeat_words``.
        special: ids that are never repeated.
        shuffle: whether to shuffle the first copy's positions.
        shuffle_special: whether to shuffle those of special tokens too.
        cut_share: share of features set to 0 in the second copy.
    """

    repeat_share: float
    repeat_rule: str
    special: Sequence[int]
    shuffle: bool
    shuffle_special: bool
    cut_share: float

    def change_ids(self, rng: np.random.Generator) -> ChangeIds | None:
        """Return the function that changes token ids in one step, or None if they do not change."""
        if self.repeat_share == 0.0:
            return None
        special, repeat = np.asarray(self.special), REPEAT_RULES[self.repeat_rule]
        return lambda ids, view: (
            repeat(ids, largest_share=self.repeat_share, rng=rng, special=special) if view == 1 else ids
        )

    def alteration(self, view_B: torch.Tensor) -> Alteration | None:
        """Return what changes between word vectors and the first layer for rows of these views, or None."""
        return _Alteration(self, view_B) if self.shuffle or self.cut_share > 0.0 else None


NO_AUGMENTATION = Augmentation(0.0, "paper", (), shuffle=False, shuffle_special=False, cut_share=0.0)


@dataclass(frozen=True)
class _Alteration:
    how: Augmentation
    view_B: torch.Tensor

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        if not self.how.shuffle:
            return positions_BL
        shuffled_BL = shuffled_positions(positions_BL, mask_BL, special=self.how.shuffle_special)
        return torch.where(self.view_B[:, None] == 0, shuffled_BL, positions_BL)

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        if self.how.cut_share == 0.0:
            return embedded_BLD
        cut_BLD = cut_features(embedded_BLD, self.how.cut_share)
        return torch.where(self.view_B[:, None, None] == 1, cut_BLD, embedded_BLD)


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into slices that are encoded one at a time.

    Attributes:
        row_groups: number of length-sorted slices, each padded to its own longest row.
        mini_batch_size: most sentences per slice; discards activations (GradCache). None: no limit, keep activations.
    """

    row_groups: int
    mini_batch_size: int | None

    def slices(self, sentences: int, workers: int) -> int:
        """Return the number of slices, a multiple of the number of workers."""
        least = 1 if self.mini_batch_size is None else math.ceil(sentences / self.mini_batch_size)
        return math.ceil(max(self.row_groups, least) / workers) * workers


@dataclass(frozen=True)
class Slice:
    """Rows of a batch, padded and encoded together.

    Attributes:
        places: indices of these rows in the flattened batch ``(V * B)``, int64 on the device.
        view_B: view of each row, on the device.
        starts: where each row starts in its column's flat ids (numpy).
        ids_BL, mask_BL: token ids and 1 for real tokens, on the device.
        prefix: returns the prompt as drawn for these rows.
        tokens: encoder outputs; only those the loss reads if the slice is encoded twice.
        twice: whether passes over these rows discard activations and run again for the gradient.
    """

    places: torch.Tensor
    view_B: torch.Tensor
    starts: np.ndarray
    ids_BL: torch.Tensor
    mask_BL: torch.Tensor
    prefix: Callable[[], Prefix | None]
    tokens: Tokens
    twice: bool

    def run(self, further: Callable[..., R], *tensors: torch.Tensor) -> R:
        """Return ``further(*tensors)``, another pass over these rows."""
        return run_twice(further, *tensors) if self.twice else further(*tensors)


@dataclass(frozen=True)
class Batch:
    """One step.

    Attributes:
        rows: row numbers ``(B,)`` of all workers.
        slices: this worker's share of the slices; all views, cut by length.
        group: the workers that share the batch.
        layout: order of all workers' slices in the flattened batch.
        anchors: order of all workers' anchors (first copies).
        longest: tokens in the longest row.
        projected_XD: embeddings that the contrastive terms compare, ``(V * B, D)`` in float32, view after view.
        labels_B: labels of the rows, or None.
        step: updates before this one.
        epoch: passes over the rows before this one.
        real_tokens: tokens in the batch, excluding padding.
        source: number of the source of the rows; 0 is the main one.
    """

    rows: np.ndarray
    slices: tuple[Slice, ...]
    group: Group
    layout: Layout
    anchors: Layout
    longest: int
    projected_XD: torch.Tensor
    labels_B: torch.Tensor | None
    step: int
    epoch: int
    real_tokens: int
    source: int = 0

    @cached_property
    def views(self) -> tuple[torch.Tensor, ...]:
        """``projected_XD`` as one ``(B, D)`` per view."""
        return self.projected_XD.split(len(self.rows))

    def in_order(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join one tensor per slice, ``(rows of the slice, ...)``, in flattened-batch order."""
        return self.layout.join(self.group, parts)


def project_in_order(encoder: SentenceEncoder, layout: Layout, group: Group, parts: Sequence[Tokens]) -> torch.Tensor:
    """Return the embeddings that the loss compares, ``(X, D)`` in float32, in batch order.

    All rows pass through the projector together because it may normalise over them.
    """
    noise = [tokens.noise_BD for tokens in parts if tokens.noise_BD is not None]
    pooled_XD = layout.join(group, [tokens.pooled_BD for tokens in parts])
    return encoder.project(pooled_XD, layout.join(group, noise) if noise else None).float()


def encode_batch(
    encoder: SentenceEncoder,
    table: TokenTable,
    rows: np.ndarray,
    *,
    cut: Cut,
    augmentation: Augmentation,
    rng: np.random.Generator,
    step: int,
    epoch: int,
    device: torch.device,
    bf16: bool,
    group: Group = ALONE,
    source: int = 0,
) -> Batch:
    """Encode all views of a batch together; every copy of a sentence gets its own dropout.

    Args:
        encoder: encoder in training mode.
        table: tokenised rows.
        rows: row numbers of the batch.
        cut: how to cut the batch into slices.
        augmentation: how copies differ.
        rng: draws the token-id augmentation, the same for all workers.
        step: updates before this one.
        epoch: passes over the rows before this one.
        device: device of the encoder.
        bf16: whether matrix products run in bfloat16.
        group: workers that share the batch; each encodes its share of the slices.
        source: number of the source of the rows.
    """
    wanted = cut.slices(len(table.columns) * len(rows), group.size)
    padded = pad_in_groups(table, rows, wanted, augmentation.change_ids(rng))
    if len(padded) < group.size:
        group = ALONE  # an epoch's last batch may have fewer slices than workers: every worker encodes all of it
    longest = max(part.ids_BL.shape[1] for part in padded)
    shares = [[padded[number] for number in numbers] for numbers in group.deal(len(padded))]
    places = [np.concatenate([part.places for part in share]) for share in shares]
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
        noise_TND = None
        if encoder.denoise != "none":
            noise_TND = encoder.noise(longest + 1)
        twice = cut.mini_batch_size is not None
        slices = [
            _encode_slice(encoder, part, noise_TND, augmentation, device, twice=twice) for part in shares[group.rank]
        ]
        layout = Layout(places, device)
        projected_XD = project_in_order(encoder, layout, group, [piece.tokens for piece in slices])
    return Batch(
        rows,
        tuple(slices),
        group,
        layout,
        Layout([part[part < len(rows)] for part in places], device),
        longest,
        projected_XD,
        None if table.labels is None else torch.from_numpy(table.labels[rows]).to(device),
        step,
        epoch,
        sum(int(part.mask_BL.sum()) for part in padded),
        source,
    )


def _encode_slice(
    encoder: SentenceEncoder,
    part: PaddedRows,
    noise_TND: torch.Tensor | None,
    augmentation: Augmentation,
    device: torch.device,
    *,
    twice: bool,
) -> Slice:
    ids_BL = torch.from_numpy(part.ids_BL).to(device, non_blocking=True)
    mask_BL = torch.from_numpy(part.mask_BL).to(device, non_blocking=True)
    view_B = torch.from_numpy(part.views).to(device)
    template_B = view_B.clamp(max=len(encoder.templates) - 1) if encoder.templates else None
    alter = augmentation.alteration(view_B)
    places = torch.from_numpy(part.places).to(device)

    def draw() -> Prefix | None:
        return encoder.prefix(len(part.ids_BL))

    if not twice:
        prefix = draw()
        tokens = encoder.pooled(ids_BL, mask_BL, Constants(prefix, noise_TND), template_B=template_B, alter=alter)
        return Slice(places, view_B, part.starts, ids_BL, mask_BL, lambda: prefix, tokens, twice)

    def encode(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> Tokens:
        made = encoder.pooled(ids_BL, mask_BL, Constants(draw(), noise_TND), template_B=template_B, alter=alter)
        return Tokens([], made.local_BLD if encoder.cnn is not None else None, made.pooled_BD, made.noise_BD)

    before = RandomState(device)  # a prompt for all rows in all layers is large, so redraw it where needed
    tokens = run_twice(encode, ids_BL, mask_BL)
    return Slice(places, view_B, part.starts, ids_BL, mask_BL, lambda: before.replay(draw), tokens, twice)


def embed_anchors(encoder: SentenceEncoder, batch: Batch) -> torch.Tensor:
    """Return an encoder's embeddings of the batch's anchors, ``(B, D)`` in float32, as the loss would see them."""
    noise_TND = encoder.noise(batch.longest + 1) if encoder.denoise != "none" else None

    def embed(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> Tokens:
        made = encoder.pooled(ids_BL, mask_BL, Constants(encoder.prefix(len(ids_BL)), noise_TND))
        return Tokens([], None, made.pooled_BD, made.noise_BD)

    found = [(piece, piece.view_B == 0) for piece in batch.slices]
    found = [(piece, own_B) for piece, own_B in found if own_B.any()] or found[:1]
    parts = [piece.run(embed, piece.ids_BL[own_B], piece.mask_BL[own_B]) for piece, own_B in found]
    return project_in_order(encoder, batch.anchors, batch.group, parts)
