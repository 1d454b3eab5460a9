"""BERT-flow (Li et al. 2020): Glow (Kingma and Dhariwal 2018) on sentence vectors.

A level consists of ``depth`` steps of actnorm, channel reversal and additive coupling; then the second half of the
channels becomes latents and the first half continues to the next level. The last level keeps both halves. All latents
are N(0, 1), so ``log p(x) = log N(z; 0, I) + log |det dz/dx|`` (equation 3 of BERT-flow). Additive couplings and
reversals have determinant 1, so only the actnorm scales remain, the same for every x.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from cse.errors import CseError
from cse.model.post import NO_VARIANCE, blocks, check_finite, mean_vector

_LOG_SCALE_FACTOR = 3.0  # from Glow: stored log-scales are divided by it, so they learn three times as fast
_WEIGHT_STD = 0.05
_SMALLEST_STD = 1e-6  # added to standard deviations, as published


class _Affine(nn.Module):
    """``(x + shift) * exp(3 * log_scale)`` per channel; initially the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))
        self.log_scale = nn.Parameter(torch.zeros(width))

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return (x_BD + self.shift) * torch.exp(_LOG_SCALE_FACTOR * self.log_scale)


class _ActNorm(_Affine):
    """The same, initialised from data."""

    @torch.no_grad()
    def initialise(self, x_BD: torch.Tensor) -> None:
        """Normalise these rows to mean 0 and variance 1 in every channel."""
        std_D, mean_D = torch.std_mean(x_BD, dim=0, correction=0)
        self.shift.copy_(-mean_D)
        self.log_scale.copy_(-torch.log(std_D + _SMALLEST_STD) / _LOG_SCALE_FACTOR)


class _Step(nn.Module):
    """Actnorm, channel reversal, and a shift of the second half of the channels computed from the first."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        half = width // 2
        self.norm = _ActNorm(width)
        self.coupling = nn.Sequential(
            *(_linear(half, hidden), _ActNorm(hidden), nn.ReLU()),
            *(_linear(hidden, hidden), _ActNorm(hidden), nn.ReLU()),
            *(_linear(hidden, half), _Affine(half)),
        )

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        first, second = self.norm(x_BD).flip(-1).chunk(2, dim=-1)
        return torch.cat([first, second + self.coupling(first)], dim=-1)


class Flow(nn.Module):
    """An invertible map of sentence vectors to latents; before initialisation or loading, it only reorders channels.

    Half of the channels leave between two levels, so ``2 ** levels`` divides the width.
    """

    def __init__(self, width: int, *, levels: int = 3, depth: int = 3, hidden: int = 32) -> None:
        super().__init__()
        if width % 2**levels:
            raise CseError(
                f"post.kind: a flow of {levels} levels halves the vectors {levels} times, but the encoder's width "
                f"{width} is not divisible by {2**levels}; use post.kind: whitening"
            )
        self.width = self.dimension = width
        self.depth, self.hidden = depth, hidden
        self.levels = nn.ModuleList(
            nn.Sequential(*(_Step(width >> level, hidden) for _ in range(depth))) for level in range(levels)
        )

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to latents ``(B, D)``; not normalised.

        The latents are ordered as the D/2 that leave after the first level, the D/4 that leave after the second, and so
        on, then the output of the last level.
        """
        latents = []
        for number, level in enumerate(self.levels, start=1):
            x_BD = level(x_BD)
            if number < len(self.levels):
                x_BD, leaving = x_BD.chunk(2, dim=-1)
                latents.append(leaving)
        return torch.cat([*latents, x_BD], dim=-1)

    def log_likelihood(self, x_BD: torch.Tensor) -> torch.Tensor:
        """Return ``log p(x)`` of each row of ``(B, D)`` in nats, ``(B,)``."""
        squares_B = self(x_BD).square().sum(dim=-1)
        log_determinant = _LOG_SCALE_FACTOR * torch.cat([step.norm.log_scale for step in self._steps()]).sum()
        return log_determinant - (squares_B + self.width * math.log(2 * math.pi)) / 2

    @torch.no_grad()
    def initialise(self, x_BD: torch.Tensor, generator: torch.Generator) -> None:
        """Draw the hidden weights (normal, 0.05) and initialise every actnorm from the rows ``(B, D)`` that reach it.

        The last layer of each coupling stays 0, so the latents of these rows have mean 0 and variance 1.
        """
        for step in self._steps():
            for layer in (step.coupling[0], step.coupling[3]):
                nn.init.normal_(layer.get_parameter("weight"), std=_WEIGHT_STD, generator=generator)
        norms = [module for module in self.modules() if isinstance(module, _ActNorm)]
        hooks = [norm.register_forward_pre_hook(lambda norm, inputs: norm.initialise(*inputs)) for norm in norms]
        self(x_BD)
        for hook in hooks:
            hook.remove()

    def config(self) -> dict[str, Any]:
        """Return what ``build_post`` needs, as JSON values."""
        sizes = {"levels": len(self.levels), "depth": self.depth, "hidden": self.hidden}
        return {"kind": "flow", "width": self.width, "dimension": self.dimension, **sizes}

    def _steps(self) -> list[_Step]:
        return [module for module in self.modules() if isinstance(module, _Step)]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a zero-initialised layer without bias; the affine map after it has one."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def fit_flow(
    vectors: NDArray[np.float32],
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    epochs: int = 1,
    seed: int,
    progress: bool = False,
    weight_decay: float = 0.01,
    **shape: int,
) -> Flow:
    """Fit a flow to sentence vectors by maximum likelihood, on the CPU.

    The loss is ``-log p(x) / (D ln 2)``, in bits per dimension. As in the published code, weight decay is decoupled and
    applies to all weights, the learning rate is constant and epsilon is 1e-6; unlike there, Adam has bias correction.

    Some encoders have channels that are constant over sentences. A flow would increase their likelihood without bound
    by amplifying rounding errors, so training adds noise to them, as wide as the other channels, and the fitted flow
    leaves them near 0.

    Args:
        batch_size: rows per step, and rows that initialise the actnorms.
        shape: ``levels``, ``depth`` and ``hidden``, see ``Flow``.
    """
    flow = Flow(vectors.shape[1], **shape)
    check_finite(vectors)
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(vectors), generator=generator).numpy() for _ in range(epochs)]
    constant_D, spread = _constant_channels(vectors)
    first_BD = torch.from_numpy(vectors[orders[0][:batch_size]])
    if torch.equal(first_BD, first_BD[:1].expand_as(first_BD)):
        raise CseError(
            f"post.kind: a flow starts from the spread of its first batch, and the {len(first_BD)} sentence(s) in it "
            "have the same vector; prepare more distinct rows"
        )
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
            norm = nn.utils.clip_grad_norm_(flow.parameters(), 1.0)  # as published
            bits = loss.item()
            if not (math.isfinite(bits) and math.isfinite(norm)):
                raise CseError(
                    f"post.kind: at step {number} of {len(batches)} the flow's loss is {bits:g} with a gradient of "
                    f"{norm:g}; its sentences are too much alike: prepare others, or set post.kind: whitening"
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
