"""What the losses share: float32, cosines, blocks of anchors, and what they see of a batch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cse.settings.objective import LossSettings

if TYPE_CHECKING:  # equations, and what stage `corrupt` takes from here, need no encoder
    from cse.model.passes import Prefix, TokenBatch
    from cse.model.sentence_encoder import SentenceEncoder

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


class Rows(Protocol):
    """The rows of a slice on the host; see ``cse.training.tokens.PaddedRows``."""

    @property
    def ids_BL(self) -> np.ndarray: ...
    @property
    def mask_BL(self) -> np.ndarray: ...
    @property
    def views(self) -> np.ndarray: ...
    @property
    def starts(self) -> np.ndarray: ...
    @property
    def index_BL(self) -> np.ndarray: ...


# rows of a slice, the device of the result, and the epoch -> corrupted ids
Source = Callable[[Rows, torch.device, int], torch.Tensor]


class Slice(Protocol):
    """Rows of a batch, padded and encoded together; see ``cse.training.batch.Slice``."""

    @property
    def rows(self) -> Rows: ...
    @property
    def places(self) -> torch.Tensor: ...
    @property
    def ids_BL(self) -> torch.Tensor: ...
    @property
    def mask_BL(self) -> torch.Tensor: ...
    @property
    def prefix(self) -> Callable[[], Prefix | None]: ...
    @property
    def tokens(self) -> TokenBatch: ...
    def run(self, further: Callable[..., R], *tensors: torch.Tensor) -> R: ...


class Workers(Protocol):
    """The workers that share a batch; see ``cse.training.group.Group``."""

    def block(self, rows: int) -> slice: ...
    def over_blocks(self, part: torch.Tensor, rows: int) -> torch.Tensor: ...
    def over_all(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor: ...


class Batch(Protocol):
    """What a loss sees of a step: rows of all workers, slices of its own; see ``cse.training.batch.Batch``."""

    @property
    def rows(self) -> np.ndarray: ...
    @property
    def slices(self) -> Sequence[Slice]: ...
    @property
    def group(self) -> Workers: ...
    @property
    def longest(self) -> int: ...
    @property
    def projected_XD(self) -> torch.Tensor: ...
    @property
    def views(self) -> tuple[torch.Tensor, ...]: ...
    @property
    def labels_B(self) -> torch.Tensor | None: ...
    @property
    def step(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def source(self) -> int: ...
    def in_order(self, parts: Sequence[torch.Tensor]) -> torch.Tensor: ...
    def embed_anchors(self, encoder: SentenceEncoder) -> torch.Tensor: ...


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

    def weight(self, step: int, own: float | None = None) -> float:
        """Return the weight after ``step`` updates; a source's own replaces the one of the settings."""
        return self.settings.weight if own is None else own

    def rates(self) -> dict[str, float]:
        """Return the learning rate of each of its weights that does not use the run's, by name."""
        return {}

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the unweighted loss, a scalar."""

    def after_update(self, batch: Batch) -> None:
        """Update state that follows the encoder, after the encoder's update with this batch."""


def over_blocks(batch: Batch, rows: int, part: Callable[[slice], torch.Tensor]) -> torch.Tensor:
    """Return a worker's contribution to a mean over rows: ``part`` of it for the block of rows that are its anchors."""
    return batch.group.over_blocks(part(batch.group.block(rows)), rows)
