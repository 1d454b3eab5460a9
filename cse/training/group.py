"""Workers that train on shares of one batch: what they tell each other, and what one worker does in its place.

The loss is that of the whole batch, as one worker would compute it. With ``W`` workers, ``L`` the loss and ``L_r`` what
worker ``r`` computes, everything below keeps ``L = 1/W sum_r L_r``, so the gradient is the mean of the workers':

- embeddings are gathered with their gradient, so every worker computes the terms over all rows, with the negatives and
  the BatchNorm statistics of all rows (``L_r = L``);
- a term that is summed over a worker's own tokens is divided by the tokens of all workers and multiplied by ``W``.

The released code of the field gathers without gradient, which shrinks the contrastive terms ``W``-fold against the
terms over tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

T = TypeVar("T")


class PeerLost(RuntimeError):
    """Another worker failed or is gone, which this one met when they were to talk; that one's words say why."""


class Group:
    """One worker alone; also what several share an interface with.

    Attributes:
        rank: number of this worker, from 0.
        size: number of workers.
    """

    rank = 0
    size = 1

    def deal(self, slices: int) -> list[list[int]]:
        """Return the slices of each worker; sorted by length, so each takes one from either end in turn."""
        shares: list[list[int]] = [[] for _ in range(self.size)]
        for number in range(slices):
            turn, place = divmod(number, self.size)
            shares[place if turn % 2 == 0 else self.size - 1 - place].append(number)
        return shares

    def gather(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Join the rows ``(counts[r], ...)`` of all workers ``r``, with their gradient."""
        return rows

    def over_all(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return this worker's part of a mean over the tokens of all workers; the workers' mean of it is the mean.

        Args:
            total: sum over this worker's tokens, a scalar with gradient.
            count: its number of tokens, a scalar.
        """
        return total / count.clamp(min=1)

    def average_gradients(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        """Replace each gradient by the mean of the workers'."""

    def average(self, values: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the workers' mean of each scalar."""
        return {name: value.item() for name, value in values.items()}

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first worker makes, which can be pickled; an error of it ends all workers.

        Raises:
            PeerLost: on the others, where the first one's ``make`` raised; it raises its own error itself.
        """
        return make()

    def any(self, flag: bool) -> bool:
        """Say whether a worker has raised a flag."""
        return flag


ALONE = Group()


@contextmanager
def _together() -> Iterator[None]:
    """Tell what goes wrong between workers from an error of this worker's own."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of gloo or NCCL
        raise PeerLost(str(error)) from error


class ProcessGroup(Group):
    """The workers of torch's default process group, which a launcher has set up (gloo or NCCL).

    Args:
        device: where tensors are that go between workers.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), dist.get_world_size(), device

    def gather(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Join the rows of all workers; the gradient of a row is the sum of what all workers' losses say of it."""
        joined: torch.Tensor = _Gather.apply(rows, tuple(counts), self.rank)
        return joined

    def over_all(self, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Divide by the tokens of all workers and multiply by their number."""
        everyone = count.detach().clone()
        with _together():
            dist.all_reduce(everyone)
        return self.size * total / everyone.clamp(min=1)

    def average_gradients(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        """Send all gradients in one message."""
        gradients = [weight.grad for weight in weights.values() if weight.grad is not None]
        if not gradients:
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _together():
            dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def average(self, values: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the workers' mean of each scalar."""
        means = torch.stack([value.detach().float() for value in values.values()])
        with _together():
            dist.all_reduce(means)
        return dict(zip(values, (means / self.size).tolist(), strict=True))

    def from_first(self, make: Callable[[], T]) -> T:
        """Send the first worker's value, or the words of its error: else the others would wait for it."""
        said: list[Any] = [None, None]
        failed: Exception | None = None
        if self.rank == 0:
            try:
                said[0] = make()
            except Exception as error:  # whatever it is, the others must not wait
                failed, said[1] = error, f"{type(error).__name__}: {error}"
        with _together():
            dist.broadcast_object_list(said, src=0, device=self.device)
        if failed is not None:
            raise failed
        if said[1] is not None:
            raise PeerLost(f"the first worker failed: {said[1]}")
        made: T = said[0]
        return made

    def any(self, flag: bool) -> bool:
        """Say whether a worker has raised a flag."""
        raised = torch.tensor(int(flag), device=self.device)
        with _together():
            dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return bool(raised.item())


class _Gather(torch.autograd.Function):
    """All-gather of unequal numbers of rows; its adjoint is the sum over workers of the own rows' gradients."""

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
        total = gradients[0].contiguous().clone()
        with _together():
            dist.all_reduce(total)
        return total[ctx.start : ctx.start + ctx.count], None, None


class Layout:
    """Where the rows that the workers hold stand in the flattened batch.

    Args:
        places: of each worker, the places of its rows in the order in which it holds them, int64 ``(rows,)``.
        device: where the rows are.

    Attributes:
        counts: rows of each worker.
    """

    def __init__(self, places: Sequence[np.ndarray], device: torch.device) -> None:
        self.counts = [len(part) for part in places]
        self.order = torch.from_numpy(np.concatenate(places).argsort()).to(device)

    def join(self, group: Group, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join what this worker holds with what the others hold, in the order of the flattened batch.

        Args:
            group: the workers.
            parts: one tensor per slice of this worker, ``(rows of the slice, ...)``.
        """
        return group.gather(torch.cat(list(parts)), self.counts)[self.order]
