"""Prompts: trainable vectors that a frozen language model attends to.

PromCSE (Jiang et al. 2022) section 3.1. Equation 1 of the paper prepends hidden states to each layer's input; the
released code trains keys and values directly. The next layer overwrites the outputs of deep prompts, so only their keys
and values matter: a kind of deep prompt is a parameter shape and a map from the parameters to one ``(key, value)``
block per layer. An ``input`` prompt is prepended only to the first layer's input and passes through all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.dropout import dropout
from cse.model.passes import Prefix
from cse.model.pooling import start_normal


class PromptKind(NamedTuple):
    """How a kind of prompt stores its parameters and turns them into keys and values."""

    shape: Callable[[Backbone, int, bool], tuple[int, ...]]
    blocks: Callable[[torch.Tensor, Backbone, torch.dtype], Prefix]  # in this type, if they are parts of the table


def key_value_blocks(table: torch.Tensor, backbone: Backbone, dtype: torch.dtype) -> Prefix:
    """Cut a table ``(P, 2 * layers * H * K)`` into one ``(H, P, K)`` key and value per layer.

    Columns are ``(layer, key | value, H, K)``, the layout of the released PromCSE checkpoints. A table
    ``(P, 2 * H * K)`` holds one layer's columns, shared by all layers. ``H`` are the heads of keys and values.
    """
    cut = table.view(table.shape[0], -1, 2, backbone.heads, backbone.head_size).permute(1, 2, 3, 0, 4)
    # of all layers at once, then keys apart from values: to cast and to stack gradients layer by layer takes launches
    keys, values = cut.expand(backbone.layers, -1, -1, -1, -1).to(dtype).unbind(1)
    return list(zip(keys.unbind(), values.unbind(), strict=True))


def hidden_state_blocks(table: torch.Tensor, backbone: Backbone, _: torch.dtype) -> Prefix:
    """Pass hidden states ``(layers, P, D)`` through each layer's own projections: ``Pk = p Wk + bk``, same for ``Pv``.

    A table ``(1, P, D)`` is shared: every layer projects the same hidden states.
    """
    return backbone.keys_and_values(table.expand(backbone.layers, -1, -1))


DEEP_KINDS = {
    "key_value": PromptKind(
        lambda b, k, shared: (k, 2 * (1 if shared else b.layers) * b.heads * b.head_size), key_value_blocks
    ),
    "hidden_state": PromptKind(lambda b, k, shared: (1 if shared else b.layers, k, b.hidden_size), hidden_state_blocks),
}
INPUT = "input"
PROMPT_KINDS = (*DEEP_KINDS, INPUT)


class Prompt(nn.Module):
    """A trainable prompt; by default as at inference, with a table of zeros to fill.

    Args:
        dropout: probability of dropping an entry of a key, value or input vector, drawn per row.
        position_shift: whether the tokens' positions start after the prompt's.
    """

    def __init__(
        self,
        kind: str,
        backbone: Backbone,
        *,
        length: int,
        dropout: float = 0.0,
        init_std: float = 0.0,
        shared: bool = False,
        position_shift: bool = True,
        reparametrize: str = "none",
        reparametrize_width: int = 512,
        new_layers: str = "normal",
    ) -> None:
        super().__init__()
        if kind == INPUT and backbone.family.input_norm is None:
            raise CseError(
                f"prompt.kind: an 'input' prompt needs learned positions alone, and {backbone.files.name} is of family "
                f"{backbone.family.name}; use key_value or hidden_state"
            )
        self.kind, self.length, self.shared, self.position_shift = kind, length, shared, position_shift
        self.dropout = dropout
        shape = (length, backbone.word_size) if kind == INPUT else DEEP_KINDS[kind].shape(backbone, length, shared)
        self.table: nn.Parameter | None = None
        self.network: Reparametrized | None = None
        if reparametrize == "none":
            self.table = nn.Parameter(torch.empty(shape).normal_(0.0, init_std))
        else:
            self.network = Reparametrized(
                reparametrize, shape, length, backbone.hidden_size, reparametrize_width, new_layers
            )

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs beside the backbone, as JSON values."""
        shift = self.position_shift
        return {"kind": self.kind, "length": self.length, "shared": self.shared, "position_shift": shift}

    @property
    def deep(self) -> bool:
        """Whether the prompt provides keys and values in every layer."""
        return self.kind != INPUT

    def values(self) -> torch.Tensor:
        """Return the prompt's current table, whether trained directly or through a network."""
        return self.network() if self.table is None and self.network is not None else self.table  # type: ignore[return-value]

    def forward(self, backbone: Backbone, rows: int) -> Prefix:
        """Return one ``(key, value)`` per layer of a deep prompt.

        Each is ``(H, P, K)`` and shared by all rows, or ``(rows, H, P, K)`` in training with dropout, so that two
        copies of a sentence see different prompts.
        """
        if not self.training or self.dropout == 0.0:
            return self.blocks(backbone)
        values = self.values()
        blocks = DEEP_KINDS[self.kind].blocks(values, backbone, _rounding(values))
        return [(self._drop(key, rows), self._drop(value, rows)) for key, value in blocks]

    def blocks(self, backbone: Backbone) -> Prefix:
        """Return a deep prompt's ``(key, value)`` per layer, ``(H, P, K)`` each, without dropout."""
        values = self.values()
        return DEEP_KINDS[self.kind].blocks(values, backbone, values.dtype)

    def inputs(self, backbone: Backbone, rows: int) -> torch.Tensor:
        """Return the vectors of an ``input`` prompt as the first layer sees them, ``(rows, P, D)``.

        They are normalised like word vectors, but have neither position nor type embeddings.
        """
        vectors_PD = backbone.family.normalised(backbone.model, self.values())
        return self._drop(vectors_PD, rows) if self.training else vectors_PD.unsqueeze(0).expand(rows, -1, -1)

    def _drop(self, block: torch.Tensor, rows: int) -> torch.Tensor:
        block = block.to(_rounding(block))  # before a copy is made for each row
        return dropout(block.unsqueeze(0).expand(rows, *(-1,) * block.dim()), self.dropout)


def _rounding(values: torch.Tensor) -> torch.dtype:
    """Return the type in which products are made of the values."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype


class Reparametrized(nn.Module):
    """A prompt table as the output of a network over ``k`` trained vectors.

    ``mlp``: Linear(D, width), tanh, Linear(width, columns), like ``prefix_projection`` in the released code. ``lstm``:
    a bidirectional LSTM of that width over the k vectors, followed by the same two layers, as in P-tuning. An ``mlp``
    starts ``normal`` as in the released code (0.02, no bias), or as ``torch``'s; no code with an LSTM was released.
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
