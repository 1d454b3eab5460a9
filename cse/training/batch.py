"""The rows of one step with their encoder outputs: the input of every loss term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from cse.losses.masked_lm import Vocabulary
from cse.model.attention import Prefix
from cse.model.backbone import Backbone
from cse.model.passes import Alteration, Constants, Packed, TokenBatch, on_device, pack_rows
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords
from cse.settings.train import AugmentSettings
from cse.training.augment import REPEAT_RULES, cut_features, shuffled_positions
from cse.training.group import ALONE, Group, GroupLayout, order_of
from cse.training.slices import ChangeIds, Cut, PaddedRows, RandomState, pad_in_groups, run_twice, slice_cost
from cse.training.tokens import TokenTable

R = TypeVar("R")
_ALIKE, _ALIKE_TOKENS = 8, 256  # tokens of a row and of a batch are multiples, to have few shapes


@dataclass(frozen=True)
class Augmentation:
    """How the copies of a sentence differ, on top of dropout; ``special`` are the ids that no copy repeats."""

    how: AugmentSettings
    special: tuple[int, ...]

    @classmethod
    def of(cls, how: AugmentSettings, backbone: Backbone | StaticWords) -> Augmentation:
        """Return that of an encoder's backbone."""
        words = backbone if how.repeat_words > 0 and isinstance(backbone, Backbone) else None
        return cls(how, () if words is None else Vocabulary.of(words).special)

    def change_ids(self, rng: np.random.Generator) -> ChangeIds | None:
        """Return the function that changes token ids in one step, or None if they do not change."""
        share, special, repeat = self.how.repeat_words, np.asarray(self.special), REPEAT_RULES[self.how.repeat_rule]
        if share == 0.0:
            return None
        return lambda ids, view: repeat(ids, largest_share=share, rng=rng, special=special) if view == 1 else ids

    def alteration(self, view_B: torch.Tensor) -> Alteration | None:
        """Return what changes between word vectors and the first layer for rows of these views, or None."""
        return _Alteration(self.how, view_B) if self.how.shuffle_tokens or self.how.cut_features > 0.0 else None


NO_AUGMENTATION = Augmentation(AugmentSettings(), ())


@dataclass(frozen=True)
class _Alteration:
    how: AugmentSettings
    view_B: torch.Tensor

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        if not self.how.shuffle_tokens:
            return positions_BL
        shuffled_BL = shuffled_positions(positions_BL, mask_BL, special=self.how.shuffle_special)
        return torch.where(self.view_B[:, None] == 0, shuffled_BL, positions_BL)

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        if self.how.cut_features == 0.0:
            return embedded_BLD
        cut_BLD = cut_features(embedded_BLD, self.how.cut_features)
        return torch.where(self.view_B[:, None, None] == 1, cut_BLD, embedded_BLD)


@dataclass(frozen=True)
class Slice:
    """Rows of a batch, padded and encoded together.

    Attributes:
        rows: the rows on the host (numpy), so that nobody has to fetch them from the device.
        places: indices of these rows in the flattened batch ``(V * B)``, int64 on the device.
        tokens: encoder outputs; only those the loss reads if the slice is encoded twice.
        twice: whether passes over these rows discard activations and run again for the gradient.
    """

    rows: PaddedRows
    places: torch.Tensor
    ids_BL: torch.Tensor
    mask_BL: torch.Tensor
    prefix: Callable[[], Prefix | None]
    tokens: TokenBatch
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
        layout: order of all workers' slices in the flattened batch.
        anchors: order of all workers' anchors (first copies).
        projected_XD: embeddings that the contrastive terms compare, ``(V * B, D)`` in float32, view after view.
        source: number of the source of the rows; 0 is the main one.
    """

    rows: np.ndarray
    slices: tuple[Slice, ...]
    group: Group
    layout: GroupLayout
    anchors: GroupLayout
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

    def embed_anchors(self, encoder: SentenceEncoder) -> torch.Tensor:
        """Return an encoder's embeddings of the anchors, ``(B, D)`` in float32, as the loss would see them."""
        noise_TND = encoder.noise(self.longest + 1) if encoder.denoise != "none" else None

        def embed(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> TokenBatch:
            made = encoder.pooled(ids_BL, mask_BL, Constants(encoder.prefix(len(ids_BL)), noise_TND))
            return TokenBatch([], None, made.pooled_BD, made.noise_BD)

        found = [(piece, np.flatnonzero(piece.rows.views == 0)) for piece in self.slices]
        found = [(piece, own) for piece, own in found if len(own)] or found[:1]
        staged = on_device([own for _, own in found], self.projected_XD.device)
        parts = [
            piece.run(embed, piece.ids_BL[own_B], piece.mask_BL[own_B])
            for (piece, _), own_B in zip(found, staged, strict=True)
        ]
        return project_in_order(encoder, self.anchors, self.group, parts)


def project_in_order(
    encoder: SentenceEncoder, layout: GroupLayout, group: Group, parts: Sequence[TokenBatch]
) -> torch.Tensor:
    """Return the embeddings that the loss compares, ``(X, D)`` in float32, in batch order.

    All rows pass through the projector together because it may normalise over them.
    """
    noise = [tokens.noise_BD for tokens in parts if tokens.noise_BD is not None]
    pooled_XD = layout.join(group, [tokens.pooled_BD for tokens in parts])
    return encoder.project(pooled_XD, layout.join(group, noise) if noise else None).float()


@dataclass(frozen=True)
class Staged:
    """A step's rows on the host, padded, and what a batch must know of them.

    Attributes:
        packed: whether the layers see the real tokens of the only slice, and no padding.
    """

    rows: np.ndarray
    own: tuple[PaddedRows, ...]
    sizes: list[int]
    anchors: list[int]
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


def stage_batch(
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
    alike: bool = False,
) -> Staged:
    """Pad all views of a batch; in ``encode_staged`` every copy of a sentence gets its own dropout.

    Args:
        rng: draws the token-id augmentation, the same for all workers.
        alike: make few shapes, for ``Captured``, and in bf16 pack rows if the encoder ``packs``.
    """
    change = augmentation.change_ids(rng)
    if alike:
        padded = pad_in_groups(table, rows, cut.row_groups or 1, change, multiple=_ALIKE, most=encoder.max_length)
    else:
        wanted = cut.slices(len(table.columns) * len(rows), group.size)
        cost = slice_cost(encoder.backbone.hidden_size, device)
        padded = pad_in_groups(table, rows, wanted, change, cost=cost)
    if len(padded) < group.size:
        group = ALONE  # an epoch's last batch may have fewer slices than workers: every worker encodes all of it
    longest = max(part.ids_BL.shape[1] for part in padded)
    shares = [[padded[number] for number in numbers] for numbers in group.deal(len(padded))]
    places = [np.concatenate([part.places for part in share]) for share in shares]
    anchors = [part[part < len(rows)] for part in places]
    own = shares[group.rank]
    arrays = [order_of(places), order_of(anchors)]
    arrays += [array for part in own for array in (part.ids_BL, part.mask_BL, part.views, part.places)]
    arrays += [] if table.labels is None else [table.labels[rows]]
    packed = alike and bf16 and len(own) == 1 and encoder.packs(device, longest)
    arrays += pack_rows(own[0].mask_BL, _ALIKE_TOKENS) if packed else []
    tokens = sum(int(part.mask_BL.sum()) for part in padded)
    sizes = [len(part) for part in places], [len(part) for part in anchors]
    labelled = table.labels is not None
    return Staged(rows, tuple(own), *sizes, labelled, packed, arrays, longest, group, step, epoch, tokens, source)


def encode_staged(
    encoder: SentenceEncoder,
    staged: Staged,
    tensors: Sequence[torch.Tensor],
    *,
    augmentation: Augmentation,
    bf16: bool,
    twice: bool = False,
) -> Batch:
    """Encode a staged batch, whose ``arrays`` are ``tensors`` on the device; ``twice`` is that of ``Slice``."""
    order, anchor_order, *moved = tensors
    labels_B = moved[4 * len(staged.own)] if staged.labelled else None
    packed = None
    if staged.packed:
        prompt = encoder.prompt
        dropped = prompt.dropout if prompt is not None and prompt.training else 0.0
        packed = Packed(moved[-2], moved[-1], staged.longest, dropped)
    with torch.autocast(order.device.type, dtype=torch.bfloat16, enabled=bf16):
        noise_TND = None
        if encoder.denoise != "none":
            noise_TND = encoder.noise(staged.longest + 1)
        slices = [
            _encode_slice(
                encoder, part, moved[4 * number : 4 * number + 4], noise_TND, augmentation, twice=twice, packed=packed
            )
            for number, part in enumerate(staged.own)
        ]
        layout = GroupLayout(staged.sizes, order)
        projected_XD = project_in_order(encoder, layout, staged.group, [piece.tokens for piece in slices])
    return Batch(
        staged.rows,
        tuple(slices),
        staged.group,
        layout,
        GroupLayout(staged.anchors, anchor_order),
        staged.longest,
        projected_XD,
        labels_B,
        staged.step,
        staged.epoch,
        staged.real_tokens,
        staged.source,
    )


def _encode_slice(
    encoder: SentenceEncoder,
    part: PaddedRows,
    staged: Sequence[torch.Tensor],
    noise_TND: torch.Tensor | None,
    augmentation: Augmentation,
    *,
    twice: bool,
    packed: Packed | None = None,
) -> Slice:
    """Encode a slice, whose ids, mask, views and places are ``staged`` on the device."""
    ids_BL, mask_BL, view_B, places = staged
    template_B = view_B.clamp(max=len(encoder.templates) - 1) if encoder.templates else None
    alter = augmentation.alteration(view_B)

    def draw() -> Prefix | None:
        return encoder.prefix(len(part.ids_BL))

    if not twice:
        prompt = None if packed is None else encoder.prompt  # the kernel drops its entries
        prefix = draw() if prompt is None else prompt.blocks(encoder.transformer)
        constants = Constants(prefix, noise_TND)
        tokens = encoder.pooled(ids_BL, mask_BL, constants, template_B=template_B, alter=alter, packed=packed)
        return Slice(part, places, ids_BL, mask_BL, lambda: prefix, tokens, twice)

    def encode(ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> TokenBatch:
        made = encoder.pooled(ids_BL, mask_BL, Constants(draw(), noise_TND), template_B=template_B, alter=alter)
        return TokenBatch([], made.local_BLD if encoder.cnn is not None else None, made.pooled_BD, made.noise_BD)

    before = RandomState(ids_BL.device)  # a prompt for all rows in all layers is large, so redraw it where needed
    tokens = run_twice(encode, ids_BL, mask_BL)
    return Slice(part, places, ids_BL, mask_BL, lambda: before.replay(draw), tokens, twice)
