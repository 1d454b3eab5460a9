"""The pooler: from token outputs to one vector per sentence (SimCSE's poolers, methods of the field)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

POOLERS = ("cls", "mean", "mean_top2", "mean_first_last")
NEEDS_ALL_LAYERS = {"mean_top2", "mean_first_last"}


def pool(
    kind: str, last_BLD: torch.Tensor, mask_BL: torch.Tensor, states: Sequence[torch.Tensor] = (), first_layer: int = 0
) -> torch.Tensor:
    """Pool token outputs to ``(B, D)``; means divide by the number of real tokens, ``[CLS]`` and ``[SEP]`` included.

    Args:
        kind: ``cls``, ``mean``, ``mean_top2`` (average of the last two layers) or ``mean_first_last``.
        last_BLD: outputs of the last layer.
        mask_BL: 1 for real tokens; prompts have no outputs, so their columns are not in it.
        states: for the last two kinds, embedding output and every layer's output, each ``(B, L, D)``.
        first_layer: index into ``states`` that counts as the first layer: 0 embeddings (as published), 1 first block.
    """
    if kind == "cls":
        return last_BLD[:, 0]
    if kind == "mean_top2":
        last_BLD = (states[-1] + states[-2]) / 2
    elif kind == "mean_first_last":
        last_BLD = (states[first_layer] + states[-1]) / 2
    weight_BL1 = mask_BL.to(last_BLD.dtype).unsqueeze(-1)
    return (last_BLD * weight_BL1).sum(dim=1) / weight_BL1.sum(dim=1)


class TanhMlp(nn.Module):
    """SimCSE's layer on top of the pooled vector: Linear(D, D) and tanh, newly initialised (normal 0.02, bias 0)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        nn.init.normal_(self.dense.weight, std=0.02)
        nn.init.zeros_(self.dense.bias)

    def forward(self, pooled_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to ``(B, D)``."""
        return torch.tanh(self.dense(pooled_BD))
