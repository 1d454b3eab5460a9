"""Deep prompts: trainable vectors that every layer of a frozen language model attends to.

PromCSE (Jiang et al. 2022) section 3.1. Equation 1 of the paper describes hidden states placed before each layer's
input; the released code trains keys and values directly. Prompt outputs are overwritten in the next layer, so only
their keys and values ever matter: a prompt kind is a shape of parameters and a map from them to one ``(key, value)``
block per layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from cse.model.attention import Prefix
from cse.model.backbone import Backbone
from cse.model.dropout import dropout


class PromptKind(NamedTuple):
    """How a kind of prompt stores its parameters and turns them into keys and values."""

    shape: Callable[[Backbone, int], tuple[int, ...]]
    blocks: Callable[[torch.Tensor, Backbone], Prefix]


def key_value_blocks(table: torch.Tensor, backbone: Backbone) -> Prefix:
    """Cut a table ``(P, 2 * layers * D)`` into one ``(H, P, K)`` key and value per layer.

    Columns are ``(layer, key | value, H, K)``: the layout of the released PromCSE checkpoints.
    """
    cut = table.view(table.shape[0], backbone.layers, 2, backbone.heads, backbone.head_size)
    return [(layer[0], layer[1]) for layer in cut.permute(1, 2, 3, 0, 4)]


def hidden_state_blocks(table: torch.Tensor, backbone: Backbone) -> Prefix:
    """Pass hidden states ``(layers, P, D)`` through each layer's own projections: ``Pk = p Wk + bk``, ``Pv`` alike."""
    blocks = []
    for hidden_PD, layer in zip(table, backbone.model.encoder.layer, strict=True):  # type: ignore[union-attr, arg-type]
        attention = layer.attention.self
        shape = (hidden_PD.shape[0], backbone.heads, backbone.head_size)
        key_HPK = attention.key(hidden_PD).view(shape).transpose(0, 1)
        value_HPK = attention.value(hidden_PD).view(shape).transpose(0, 1)
        blocks.append((key_HPK, value_HPK))
    return blocks


PROMPT_KINDS = {
    "key_value": PromptKind(lambda b, length: (length, 2 * b.layers * b.hidden_size), key_value_blocks),
    "hidden_state": PromptKind(lambda b, length: (b.layers, length, b.hidden_size), hidden_state_blocks),
}


class DeepPrompt(nn.Module):
    """The trainable prompt of every layer.

    Args:
        kind: a key of ``PROMPT_KINDS``.
        backbone: gives the shape; it is not kept.
        length: prompt vectors per layer (k).
        dropout: probability of dropping an entry of a key or value, drawn for each row.
        init_std: standard deviation of the normal initialisation.
    """

    def __init__(self, kind: str, backbone: Backbone, *, length: int, dropout: float, init_std: float) -> None:
        super().__init__()
        self.kind = kind
        self.length = length
        self.dropout = dropout
        self.table = nn.Parameter(torch.empty(PROMPT_KINDS[kind].shape(backbone, length)).normal_(0.0, init_std))

    def forward(self, backbone: Backbone, rows: int) -> Prefix:
        """Return one ``(key, value)`` per layer.

        Each is ``(H, P, K)`` and shared by all rows, or in training with dropout ``(rows, H, P, K)``: two copies of a
        sentence see different prompts.
        """
        blocks = PROMPT_KINDS[self.kind].blocks(self.table, backbone)
        if not self.training or self.dropout == 0.0:
            return blocks
        return [(self._drop(key, rows), self._drop(value, rows)) for key, value in blocks]

    def _drop(self, block_HPK: torch.Tensor, rows: int) -> torch.Tensor:
        return dropout(block_HPK.unsqueeze(0).expand(rows, -1, -1, -1), self.dropout)
