"""Prompts trained through a small network that is dropped afterwards (P-tuning, prefix tuning)."""

from __future__ import annotations

import math

import torch
from torch import nn


class Reparametrized(nn.Module):
    """A prompt table as the output of a network over ``k`` trained vectors.

    ``mlp``: Linear(D, width), tanh, Linear(width, columns), as ``prefix_projection`` in the released code. ``lstm``: a
    bidirectional LSTM of that width over the k vectors before the same two layers, as in P-tuning.

    Args:
        kind: ``mlp`` or ``lstm``.
        shape: shape of the table, with ``length`` as one of its axes.
        length: prompt vectors (k).
        width: backbone's hidden width (D).
        hidden: hidden width of the network.
    """

    def __init__(self, kind: str, shape: tuple[int, ...], length: int, width: int, hidden: int) -> None:
        super().__init__()
        self.shape = shape
        self.axis = len(shape) - 2  # k stands before the last axis
        self.start = nn.Parameter(torch.empty(length, width).normal_(0.0, 0.02))
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True) if kind == "lstm" else None
        columns = math.prod(shape) // length
        self.layers = nn.Sequential(
            nn.Linear(2 * hidden if kind == "lstm" else width, hidden), nn.Tanh(), nn.Linear(hidden, columns)
        )

    def forward(self) -> torch.Tensor:
        """Return the table."""
        vectors_PD = self.start
        if self.lstm is not None:
            vectors_PD = self.lstm(vectors_PD.unsqueeze(0))[0].squeeze(0)
        rows = self.layers(vectors_PD)
        if self.axis == 0:
            return rows.view(self.shape)
        return rows.view(self.shape[1], self.shape[0], self.shape[2]).transpose(0, 1)
