"""The rows of one step with their encoder outputs: the input of every loss term.

A batch is encoded in slices, once or twice. Gao et al. 2021 (GradCache): the gradient of a contrastive loss reaches the
weights only through the embeddings. A large batch can therefore be encoded slice by slice without keeping activations;
the loss uses all embeddings, and the backward pass encodes the slices again, one at a time, to carry the gradient of
the embeddings to the weights. The gradient is exact only if the second pass drops the same units as the first, so the
random states of CPU and GPU are saved. Where positives differ by dropout alone, different units would silently make it
a different method. ``torch.utils.checkpoint`` goes around whole slices, so this works for terms with their own passes,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from cse.model.passes import Constants, Packed, Prefix, TokenBatch, on_device, pack_rows
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.augment import alteration, change_ids
from cse.training.group import ALONE, Group, GroupLayout
from cse.training.tokens import PaddedRows, TokenTable, pad_in_groups, slice_cost, slices_of

R = TypeVar("R")
_ALIKE, _ALIKE_TOKENS = 8, 256  # tokens of a row and of a batch are multiples, to have few shapes


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
class Staged:
    """A step's rows on the host, padded, and what a batch must know of them.

    Attributes:
        rows: row numbers ``(B,)`` of all workers.
        sizes: rows of each worker's slices; ``anchor_sizes``: the anchors among them.
        packed: whether the layers see the real tokens of the only slice, and no padding.
        source: number of the source of the rows; 0 is the main one.
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


@dataclass(frozen=True)
class Batch(Staged):
    """One step: its rows with their encoder outputs.

    Attributes:
        slices: this worker's share of the slices; all views, cut by length.
        layout: order of all workers' slices in the flattened batch; ``anchors``: of their first copies.
        projected_XD: embeddings that the contrastive terms compare, ``(V * B, D)`` in float32, view after view.
    """

    slices: Sequence[Slice]
    layout: GroupLayout
    anchors: GroupLayout
    projected_XD: torch.Tensor
    labels_B: torch.Tensor | None

    @cached_property
    def views(self) -> tuple[torch.Tensor, ...]:
        """``projected_XD`` as one ``(B, D)`` per view."""
        return self.projected_XD.split(len(self.rows))

    def in_order(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join one tensor per slice, ``(rows of the slice, ...)``, in flattened-batch order."""
        return self.layout.join(parts)

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
        return project_in_order(encoder, self.anchors, parts)


def project_in_order(encoder: SentenceEncoder, layout: GroupLayout, parts: Sequence[TokenBatch]) -> torch.Tensor:
    """Return the embeddings that the loss compares, ``(X, D)`` in float32, in batch order.

    All rows pass through the projector together because it may normalise over them.
    """
    noise = [tokens.noise_BD for tokens in parts if tokens.noise_BD is not None]
    pooled_XD = layout.join([tokens.pooled_BD for tokens in parts])
    return encoder.project(pooled_XD, layout.join(noise) if noise else None).float()


def stage_batch(
    encoder: SentenceEncoder,
    table: TokenTable,
    rows: np.ndarray,
    *,
    settings: TrainSettings,
    augment: AugmentSettings,
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
        alike: make few shapes, for ``Captured``, and in bf16 pack rows if the encoder ``packs``.
    """
    rng = np.random.default_rng([settings.seed, step])  # the same for all workers
    change = change_ids(augment, encoder.backbone, rng)
    if alike:
        padded = pad_in_groups(table, rows, settings.row_groups or 1, change, multiple=_ALIKE, most=encoder.max_length)
    else:
        wanted = slices_of(settings, len(table.columns) * len(rows), group.size)
        cost = slice_cost(encoder.backbone.hidden_size, device)
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
    packed = alike and bf16 and len(own) == 1 and encoder.packs(device, longest)
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


def encode_staged(
    encoder: SentenceEncoder,
    staged: Staged,
    tensors: Sequence[torch.Tensor],
    *,
    augment: AugmentSettings,
    bf16: bool,
    twice: bool = False,
) -> Batch:
    """Encode a staged batch, whose ``arrays`` are ``tensors`` on the device; ``twice`` is that of ``Slice``."""
    order, anchor_order, *moved = tensors
    labels_B = moved[4 * len(staged.own)] if staged.labelled else None
    prompt, packed = encoder.prompt, None
    if staged.packed:
        dropped = prompt.dropout if prompt is not None and prompt.training else 0.0
        packed = Packed(moved[-2], moved[-1], staged.longest, dropped)

    def encode(number: int, part: PaddedRows) -> Slice:
        ids_BL, mask_BL, view_B, places = moved[4 * number : 4 * number + 4]
        template_B = view_B.clamp(max=len(encoder.templates) - 1) if encoder.templates else None
        alter = alteration(augment, view_B)

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
            return TokenBatch([], made.local_BLD if encoder.cnn is not None else None, made.pooled_BD, made.noise_BD)

        before = RandomState(ids_BL.device)  # a prompt for all rows in all layers is large, so redraw it where needed
        tokens = run_twice(embed, ids_BL, mask_BL)
        return Slice(part, places, ids_BL, mask_BL, lambda: before.replay(draw), tokens, twice)

    with torch.autocast(order.device.type, dtype=torch.bfloat16, enabled=bf16):
        noise_TND = encoder.noise(staged.longest + 1) if encoder.denoise != "none" else None
        slices = tuple(encode(number, part) for number, part in enumerate(staged.own))
        layout = GroupLayout(staged.group, staged.sizes, order)
        projected_XD = project_in_order(encoder, layout, [piece.tokens for piece in slices])
    anchors = GroupLayout(staged.group, staged.anchor_sizes, anchor_order)
    return Batch(
        **vars(staged), slices=slices, layout=layout, anchors=anchors, projected_XD=projected_XD, labels_B=labels_B
    )
