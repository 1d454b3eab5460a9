"""Maximum likelihood training of a flow on sentence vectors (Li et al. 2020, section 3)."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from cse.errors import CseError
from cse.model.post.flow import Flow
from cse.model.post.vectors import NO_VARIANCE, blocks, check_finite, mean_vector


def fit_flow(
    vectors: NDArray[np.float32],
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    epochs: int = 1,
    seed: int,
    progress: bool = False,
    weight_decay: float = 0.01,
    clip_norm: float = 1.0,
    **shape: int,
) -> Flow:
    """Fit a flow to sentence vectors by maximum likelihood, on the CPU.

    The loss is ``-log p(x) / (D ln 2)``, in bits per dimension. As in the published code, weight decay is decoupled and
    applies to all weights, the learning rate is constant and epsilon is 1e-6; unlike there, Adam has bias correction.

    Some encoders have channels that are constant over sentences. A flow would increase their likelihood without bound
    by amplifying rounding errors, so training adds noise to them, as wide as the other channels, and the fitted flow
    leaves them near 0.

    Args:
        vectors: ``(n, D)``, one row per sentence.
        batch_size: rows per step, and rows that initialise the actnorms.
        epochs: passes over the vectors, each in a new order.
        seed: seed for weights and order; the same seed gives the same flow.
        progress: whether to show a progress bar with rate and loss on stderr.
        weight_decay: weight decay of AdamW; by default as published.
        clip_norm: largest norm of the gradient; by default as published.
        shape: ``levels``, ``depth`` and ``hidden``, see ``Flow``.

    Returns:
        The flow without gradients, in evaluation mode.
    """
    flow = Flow(vectors.shape[1], **shape)
    check_finite(vectors)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(vectors), generator=generator).numpy() for _ in range(epochs)]
    constant_D, spread = _constant_channels(vectors)
    first_BD = torch.from_numpy(vectors[orders[0][:batch_size]])
    _check_varied(first_BD)
    _add_noise(first_BD, constant_D, spread, generator)
    flow.initialise(first_BD, generator)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=learning_rate, weight_decay=weight_decay, eps=1e-6, fused=True)
    batches = [order[start : start + batch_size] for order in orders for start in range(0, len(order), batch_size)]
    total = epochs * len(vectors)
    with tqdm(total=total, desc="flow", unit="sentence", unit_scale=True, file=sys.stderr, disable=not progress) as bar:
        for number, rows in enumerate(batches, start=1):
            x_BD = torch.from_numpy(vectors[rows])
            _add_noise(x_BD, constant_D, spread, generator)
            loss = -flow.log_likelihood(x_BD).mean() / (flow.width * math.log(2))
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(flow.parameters(), clip_norm)
            bits = loss.item()
            if not (math.isfinite(bits) and math.isfinite(norm)):
                raise CseError(
                    f"post.kind: at step {number} of {len(batches)} the flow's loss is {bits:g} with a gradient of "
                    f"{norm:g}; lower its learning rate (now {learning_rate:g}) or raise its batch size"
                )
            optimizer.step()
            bar.set_postfix_str(f"{bits:.3f} bits/dim", refresh=False)
            bar.update(len(rows))
    return flow.requires_grad_(False).eval()


def _constant_channels(vectors: NDArray[np.float32]) -> tuple[torch.Tensor, float]:
    """Return the indices of channels of ``(n, D)`` without variance, and the root mean square deviation of all."""
    mean_D = mean_vector(vectors)
    sum_D = np.zeros_like(mean_D)
    for block in blocks(vectors):
        sum_D += np.square(block - mean_D).sum(axis=0)
    variance_D = sum_D / max(len(vectors), 1)
    constant_D = np.flatnonzero(variance_D <= NO_VARIANCE * variance_D.max())
    return torch.from_numpy(constant_D), float(variance_D.mean() ** 0.5)


def _add_noise(x_BD: torch.Tensor, channels: torch.Tensor, std: float, generator: torch.Generator) -> None:
    """Add normal noise to some channels of ``(B, D)``, in place."""
    if len(channels):
        x_BD[:, channels] += std * torch.randn((len(x_BD), len(channels)), generator=generator)


def _check_varied(x_BD: torch.Tensor) -> None:
    """Raise a CseError if the first batch holds one sentence or copies of one."""
    if torch.equal(x_BD, x_BD[:1].expand_as(x_BD)):
        raise CseError(
            f"post.kind: a flow starts from the spread of its first batch, and the {len(x_BD)} sentence(s) in it have "
            "the same vector; prepare more distinct rows or raise the batch size"
        )
