"""Prompts trained through a small network that is discarded afterwards (P-tuning, prefix tuning)."""

from __future__ import annotations

import math

import torch
from torch import nn


def start_normal(part: nn.Module) -> None:
    """Initialise a module's linear layers by transformers' rule, as in the released code: normal (0, 0.02), bias 0."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Reparametrized(nn.Module):
    """A prompt table as the output of a network over ``k`` trained vectors.

    ``mlp``: Linear(D, width), tanh, Linear(width, columns), like ``prefix_projection`` in the released code. ``lstm``:
    a bidirectional LSTM of that width over the k vectors, followed by the same two layers, as in P-tuning.

    Args:
        kind: ``mlp`` or ``lstm``.
        shape: shape of the table, with ``length`` as one of its axes.
        start: initialisation of an ``mlp``: ``normal`` as in the released code (0.02, no bias), or ``torch``. No code
            with an LSTM was released; it uses torch's initialisation, as in P-tuning.
    """

    def __init__(
        self, kind: str, shape: tuple[int, ...], length: int, width: int, hidden: int, start: str = "normal"
    ) -> None:
        super().__init__()
        self.shape = shape
        self.axis = len(shape) - 2  # k is the second-to-last axis
        self.start = nn.Parameter(torch.empty(length, width).normal_(0.0, 0.02))
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True) if kind == "lstm" else None
        columns = math.prod(shape) // length
        self.layers = nn.Sequential(
            nn.Linear(2 * hidden if kind == "lstm" else width, hidden), nn.Tanh(), nn.Linear(hidden, columns)
        )
        if kind == "mlp" and start == "normal":
            start_normal(self.layers)

    def forward(self) -> torch.Tensor:
        """Return the table."""
        vectors_PD = self.start
        if self.lstm is not None:
            with torch.autocast(vectors_PD.device.type, enabled=False):  # not every processor has an LSTM in bf16
                vectors_PD = self.lstm(vectors_PD.unsqueeze(0))[0].squeeze(0)
        rows = self.layers(vectors_PD)
        if self.axis == 0:
            return rows.view(self.shape)
        return rows.view(self.shape[1], self.shape[0], self.shape[2]).transpose(0, 1)
