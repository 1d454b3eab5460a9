"""Which of the backbone's own weights are trained beside the prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from cse.model.backbone import Backbone
from cse.model.static_words import StaticWords


class LowRank(nn.Module):
    """A weight's update as a product of two thin matrices (LoRA, Hu et al. 2022, equation 3), at first zero."""

    def __init__(self, weight: torch.Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(rank, columns) * columns**-0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with its update ``(out, in)``."""
        return weight + self.up @ self.down


def choose_trained(backbone: Backbone | StaticWords, trained: str, lora_rank: int) -> None:
    """Let the optimiser see what ``train.parameters`` names, and no other weight of the backbone.

    ``lora`` adds two factors to the weight of every linear layer of the transformer's blocks.
    """
    if trained == "lora" and isinstance(backbone, Backbone):
        for layer in linear_layers(backbone):
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, lora_rank))
    for module in backbone.modules():
        for name, weight in module.named_parameters(recurse=False):
            chosen = {
                "prompts": False,
                "biases": name.endswith("bias"),
                "norms": type(module).__name__.endswith("Norm"),  # LayerNorm, and each family's own RMSNorm
                "lora": isinstance(module, LowRank),
                "full": True,
            }
            weight.requires_grad_(chosen[trained])


def linear_layers(backbone: Backbone) -> dict[nn.Linear, str]:
    """Return the linear layers of the transformer's blocks with their paths in a block; ALBERT's blocks are one."""
    named = (pair for block in backbone.blocks for pair in block.named_modules())
    return {layer: path for path, layer in named if isinstance(layer, nn.Linear)}


def added_weights(backbone: Backbone | StaticWords) -> int:
    """Return how many numbers the low-rank updates have."""
    return sum(
        weight.numel() for layer in backbone.modules() if isinstance(layer, LowRank) for weight in layer.parameters()
    )


@contextmanager
def merged(backbone: Backbone | StaticWords) -> Iterator[None]:
    """Inside the block, low-rank updates are part of the weights, as in any model of the library."""
    layers: list[Any] = [layer for layer in backbone.modules() if parametrize.is_parametrized(layer)]
    kept = [(layer.parametrizations.weight[0], layer.parametrizations.weight.original.detach()) for layer in layers]
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    try:
        yield
    finally:
        for layer, (update, weight) in zip(layers, kept, strict=True):
            with torch.no_grad():
                layer.weight.set_(weight)
            parametrize.register_parametrization(layer, "weight", update)
