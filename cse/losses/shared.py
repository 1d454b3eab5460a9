"""What the losses share: float32, cosines, blocks of anchors, and what they see of a batch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from cse.losses.group import Group, GroupLayout
from cse.model.passes import Constants, Prefix, TokenBatch, on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import LossSettings

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=LossSettings)

EVERY = slice(None)  # as anchors: all rows
UNLABELLED = -1


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute in float32: cast half-precision tensor arguments to float32, leave float64 alone.

    A loss's exponentials need more than bfloat16 offers. Autocast is off inside because it would round the operands of
    matrix products to half precision again.
    """

    @functools.wraps(function)
    def raised(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        with torch.autocast(next(tensors).device.type, enabled=False):
            return function(*map(_raise, args), **{name: _raise(value) for name, value in kwargs.items()})

    return raised


def _raise(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value


@in_float32
def cosines(anchor_BD: torch.Tensor, candidate_ND: torch.Tensor) -> torch.Tensor:
    """Return ``cos(anchor_i, candidate_j)`` as ``(B, N)``."""
    return F.normalize(anchor_BD, dim=-1) @ F.normalize(candidate_ND, dim=-1).T


def rows_of(values_B: torch.Tensor, anchors: slice) -> torch.Tensor:
    """Return the anchors' rows; all of them as they are, since a slice would change the order of sums of gradients."""
    start, stop, _ = anchors.indices(len(values_B))
    return values_B if stop - start == len(values_B) else values_B[anchors]


@dataclass(frozen=True)
class PaddedRows:
    """Rows of a batch on the host, padded to their longest.

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


# rows of a slice, the device of the result, and the epoch -> corrupted ids
Source = Callable[[PaddedRows, torch.device, int], torch.Tensor]


def run_twice(run: Callable[..., R], *tensors: torch.Tensor) -> R:
    """Return ``run(*tensors)`` without storing activations; the backward pass recomputes them."""
    made: Any = checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=True)
    return made


@dataclass(frozen=True)
class Slice:
    """Rows of a batch, padded and encoded together.

    Attributes:
        rows: the rows on the host, so that nobody has to fetch them from the device.
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


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a loss sees of a step: its rows with their encoder outputs.

    Attributes:
        rows: row numbers ``(B,)`` of all workers.
        slices: this worker's share of the slices; all views, cut by length.
        layout: order of all workers' slices in the flattened batch; ``anchors``: of their first copies.
        projected_XD: embeddings that the contrastive terms compare, ``(V * B, D)`` in float32, view after view.
        source: number of the source of the rows; 0 is the main one.
    """

    rows: np.ndarray
    slices: Sequence[Slice]
    layout: GroupLayout
    anchors: GroupLayout
    longest: int
    projected_XD: torch.Tensor
    labels_B: torch.Tensor | None
    step: int
    epoch: int
    source: int

    @property
    def group(self) -> Group:
        """The workers that share the batch."""
        return self.layout.group

    @cached_property
    def views(self) -> tuple[torch.Tensor, ...]:
        """``projected_XD`` as one ``(B, D)`` per view."""
        return self.projected_XD.split(len(self.rows))

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


class Loss(nn.Module, ABC, Generic[S]):
    """A term of the loss; owns training-only parts such as heads, copies and a queue.

    Args:
        encoder: the encoder being trained; its weights do not belong to the loss.
    """

    from_tensors = False  # whether it follows from a batch's embeddings and labels alone, see ``Captured``

    def __init__(self, encoder: SentenceEncoder, settings: S) -> None:
        super().__init__()
        self._encoder = (encoder,)  # in a tuple, so that torch does not register it as a submodule
        self.settings = settings

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder being trained."""
        return self._encoder[0]

    def decay(self, step: int) -> float:
        """Return what is left of its weight after ``step`` updates."""
        return 1.0

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each of its weights that does not use the run's, by name."""
        return {}

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""
