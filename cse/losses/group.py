"""Communication between workers that train on shares of one batch.

The loss is that of the whole batch, as a single worker would compute it. With ``W`` workers, ``L`` the loss and ``L_r``
the loss on worker ``r``, the code keeps ``L = 1/W sum_r L_r``, so the gradient is the mean over workers:

- embeddings are gathered with their gradient, so terms see the negatives and the BatchNorm statistics of all rows;
- a contrastive term is ``W`` times the part of its mean that a block of the rows has as anchors, with all rows as
  candidates, so a worker holds ``B / W x B`` cosines; other terms are computed over all rows (``L_r = L``);
- a term summed over a worker's own tokens is divided by the tokens of all workers and multiplied by ``W``.

Released code in this field gathers without gradient, which scales the contrastive terms down ``W``-fold relative to the
token-level terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
_CPU = torch.device("cpu")


class PeerLost(RuntimeError):
    """Communication failed because another worker failed or is gone; that worker's own error gives the cause."""


@contextmanager
def _together() -> Iterator[None]:
    """Raise communication errors as ``PeerLost``, to tell them apart from this worker's own errors."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # from gloo or NCCL
        raise PeerLost(str(error)) from error


def _all_reduce(values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
    """Put the sum of all workers' values in their place, or the largest of each."""
    with _together():
        dist.all_reduce(values, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return values


class Group:
    """The workers that share each batch; one alone sends nothing."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device = _CPU) -> None:
        self.rank, self.size, self.device = rank, size, device

    @classmethod
    def joined(cls, device: torch.device) -> Group:
        """Return the workers of torch's default process group, set up by a launcher (gloo or NCCL)."""
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def deal(self, slices: int) -> list[list[int]]:
        """Return the slices of each worker; deals in alternating order, since slices are sorted by length."""
        shares: list[list[int]] = [[] for _ in range(self.size)]
        for number in range(slices):
            turn, place = divmod(number, self.size)
            shares[place if turn % 2 == 0 else self.size - 1 - place].append(number)
        return shares

    def gather(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Gather the rows ``(counts[r], ...)`` of all workers ``r``; a row's gradient sums over all workers' losses."""
        if self.size == 1:
            return rows
        joined: torch.Tensor = _Gather.apply(rows, tuple(counts), self.rank)
        return joined

    def over_blocks(self, rows: int, part: Callable[[slice], torch.Tensor]) -> torch.Tensor:
        """Return this worker's contribution to a mean over all rows, given the ``part`` of a block of anchors.

        Its block is a share of the rows, or all of them if there are fewer than workers.
        """
        if self.size == 1 or rows < self.size:
            return part(slice(0, rows))
        return self.size * part(slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size))

    def over_all(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return this worker's contribution to a mean over all workers' tokens; the average of theirs is the mean."""
        if self.size == 1:
            return total / count.clamp(min=1)
        return self.size * total / _all_reduce(count.detach().clone()).clamp(min=1)

    def average_gradients(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        """Replace each gradient with its mean over workers, all in one message."""
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        if self.size == 1 or not gradients:
            return
        flat = _all_reduce(torch.cat([gradient.flatten() for gradient in gradients])).div_(self.size)
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def average(self, values: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the mean of each scalar over workers."""
        means = torch.stack([value.detach().float() for value in values.values()])  # one wait for the device
        if self.size > 1:
            _all_reduce(means)
        return dict(zip(values, (means / self.size).tolist(), strict=True))

    def from_first(self, make: Callable[[], T]) -> T:
        """Return the first worker's result of ``make``, which must be picklable; an error there ends all workers.

        Raises:
            PeerLost: on the other workers, if ``make`` raised on the first, which raises its own error.
        """
        if self.size == 1:
            return make()
        said: list[Any] = [None, None]
        failed: Exception | None = None
        if self.rank == 0:
            try:
                said[0] = make()
            except Exception as error:  # whatever it is, do not keep the others waiting
                failed, said[1] = error, f"{type(error).__name__}: {error}"
        with _together():
            dist.broadcast_object_list(said, src=0, device=self.device)
        if failed is not None:
            raise failed
        if said[1] is not None:
            raise PeerLost(f"the first worker failed: {said[1]}")
        made: T = said[0]
        return made

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any worker set it."""
        if self.size == 1:
            return [*flags]
        raised = _all_reduce(torch.tensor(flags, dtype=torch.int32, device=self.device), largest=True)
        return [bool(flag) for flag in raised.tolist()]


ALONE = Group()


class _Gather(torch.autograd.Function):
    """All-gather of unequal numbers of rows; backward sums the gradients of the worker's own rows over all workers."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, counts: tuple[int, ...], rank: int) -> torch.Tensor:
        most = max(counts)
        sent = rows.new_zeros((most, *rows.shape[1:]))
        sent[: len(rows)] = rows
        received = [torch.empty_like(sent) for _ in counts]
        with _together():
            dist.all_gather(received, sent)
        ctx.start, ctx.count = sum(counts[:rank]), counts[rank]
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = _all_reduce(gradients[0].contiguous().clone())
        return total[ctx.start : ctx.start + ctx.count], None, None


@dataclass(frozen=True)
class GroupLayout:
    """Order of the workers' rows in the flattened batch.

    Attributes:
        counts: rows of each worker.
        order: what restores the flattened batch from the workers' rows one after another, int64.
    """

    group: Group
    counts: Sequence[int]
    order: torch.Tensor

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Gather all workers' rows in flattened-batch order; ``parts`` is one tensor per slice of this worker."""
        rows = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
        # the gradient of an index counts on repeated rows and sorts them on a GPU; index_select's adds at once
        return self.group.gather(rows, self.counts).index_select(0, self.order)
