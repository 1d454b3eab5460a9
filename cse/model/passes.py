"""A pass through the layers: what enters and leaves it, and attention over ``[prompt | tokens]``, padded or packed.

PromCSE's encoder: the prompt has keys and values but no queries, so it has no outputs and no residual stream. Attention
is registered with transformers, so that it works for every model family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface

from cse.model.dropout import dropout as cheap_dropout

PREFIX_ATTENTION = "cse_prefix"

# keys and values of one layer, each (H, P, K) shared by all rows or (B, H, P, K) drawn per row
LayerPrefix = tuple[torch.Tensor, torch.Tensor]
Prefix = list[LayerPrefix]  # one per layer


def prefix_attention(
    module: nn.Module,
    query_BHLK: torch.Tensor,
    key_BHLK: torch.Tensor,
    value_BHLK: torch.Tensor,
    attention_mask: Any,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    prefix: LayerPrefix | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from the tokens to the prompt and the tokens: ``softmax(Q [Pk; K]^T / sqrt(K) + mask) [Pv; V]``.

    Args:
        key_BHLK: keys of the tokens, same shape; with grouped keys and values, ``H`` is a divisor of the queries'.
        attention_mask: ``(B, 1, 1 or L, P + L)``, true for visible columns; or numbers to add to the scores
            ``(B, H, L, P + L)``; or which tokens of one row belong together.
        dropout: probability of dropping an attention weight, including prompt columns.

    Returns:
        The outputs ``(B, L, H, K)``, and None for the weights.
    """
    scale = query_BHLK.shape[-1] ** -0.5 if scaling is None else scaling
    if not isinstance(attention_mask, torch.Tensor | None):
        return attention_mask.attend(query_BHLK, key_BHLK, value_BHLK, prefix, dropout=dropout, scaling=scale), None
    if prefix is not None:
        prefix_key, prefix_value = prefix
        rows = key_BHLK.shape[0]
        key_BHLK = torch.cat([per_row(prefix_key, rows).to(key_BHLK.dtype), key_BHLK], dim=2)
        value_BHLK = torch.cat([per_row(prefix_value, rows).to(value_BHLK.dtype), value_BHLK], dim=2)
    if key_BHLK.shape[1] != query_BHLK.shape[1]:
        times = query_BHLK.shape[1] // key_BHLK.shape[1]
        key_BHLK, value_BHLK = (x.repeat_interleave(times, dim=1) for x in (key_BHLK, value_BHLK))
    if query_BHLK.device.type != "cpu" or not (dropout > 0.0 or torch.is_grad_enabled()):
        output_BHLK = F.scaled_dot_product_attention(
            query_BHLK, key_BHLK, value_BHLK, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
        return output_BHLK.transpose(1, 2), None
    # in training on a CPU, step by step in a third of the time: the backward pass of torch's kernel is slow for short
    # rows, and it draws dropout masks slowly
    scores = (query_BHLK * scale) @ key_BHLK.transpose(-2, -1)
    if attention_mask is not None:
        scores += as_numbers(attention_mask, scores.dtype) if attention_mask.dtype == torch.bool else attention_mask
    wide = torch.promote_types(scores.dtype, torch.float32)  # in bf16, the softmax takes four times as long
    share = scores.softmax(dim=-1, dtype=wide).to(value_BHLK.dtype)
    return (cheap_dropout(share, dropout) @ value_BHLK).transpose(1, 2), None


def visible_columns(
    mask_BL: torch.Tensor,
    prompt_length: int,
    prompt_BP: torch.Tensor | None = None,
    *,
    causal: bool = False,
    reach: int | None = None,
) -> torch.Tensor:
    """Return which columns each token sees: every prompt column or those of ``prompt_BP``, and real tokens.

    Args:
        prompt_BP: prompt columns that each row sees ``(B, P)``; None: all.
        reach: how many tokens away a token sees; None: any number.

    Returns:
        A boolean mask ``(B, 1, 1, P + L)`` if all tokens of a row see the same columns, else ``(B, 1, L, P + L)``.
    """
    tokens_BL = mask_BL.to(torch.bool)
    rows, length = tokens_BL.shape
    if prompt_BP is None:
        prompt_BP = tokens_BL.new_ones((rows, prompt_length))
    if not causal and reach is None:
        return torch.cat([prompt_BP, tokens_BL], dim=1)[:, None, None, :]
    column_L = torch.arange(length, device=mask_BL.device)
    back_LL = column_L[:, None] - column_L[None, :]  # how far back a column is
    seen_LL = back_LL >= 0 if causal else torch.ones_like(back_LL, dtype=torch.bool)
    if reach is not None:
        seen_LL = seen_LL & (back_LL.abs() <= reach)
    # a padding token sees itself: a row of the softmax without any column would be NaN
    tokens_BLL = (seen_LL & tokens_BL[:, None, :]) | (back_LL == 0)
    return torch.cat([prompt_BP[:, None, :].expand(-1, length, -1), tokens_BLL], dim=2)[:, None]


def as_numbers(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what to add to the scores: 0 where a column is visible, else minus infinity."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))


def per_row(block: torch.Tensor, rows: int) -> torch.Tensor:
    """Return keys or values as ``(B, H, P, K)``, expanded if all rows share them."""
    return block if block.dim() == 4 else block.unsqueeze(0).expand(rows, -1, -1, -1)


AttentionInterface.register(PREFIX_ATTENTION, prefix_attention)


@dataclass(frozen=True)
class Alteration:
    """Changes between word vectors and the first layer: to its input ``(B, L, D)``, and to position ids ``(B, L)``."""

    embedded: Callable[[torch.Tensor], torch.Tensor]
    positions: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda positions_BL, mask_BL: positions_BL


@dataclass(frozen=True)
class Constants:
    """Values that do not depend on the sentence."""

    prefix: Prefix | None = None
    noise_TND: torch.Tensor | None = None  # output of each template without a sentence, by sentence length `n`


@dataclass(frozen=True)
class TokenBatch:
    """Outputs for a slice of rows."""

    states: list[torch.Tensor]  # the last layer's `(B, L, D)`, without prompt columns; all others first if pooled, too
    local_BLD: torch.Tensor | None  # token features to pool, of the last layer or the convolutions; None: not kept
    pooled_BD: torch.Tensor
    noise_BD: torch.Tensor | None


WIDTHS = (32, 64)  # of a head: what the kernel was tried with
LONGEST = 32  # tokens of a row: more scores do not fit into registers


@dataclass(frozen=True)
class Packed:
    """Where the tokens of a padded batch ``(B, L)`` are."""

    places_T: torch.Tensor  # place of each in the flattened batch; those behind the last are `B * L`
    starts: torch.Tensor  # where each row starts, and where the last ends, int64
    longest: int
    prompt_dropout: float = 0.0  # probability of dropping an entry of a layer's prompt, drawn per row

    def pack(self, values_BL: torch.Tensor) -> torch.Tensor:
        """Return ``(1, T, ...)`` of ``(B, L, ...)``."""
        flat = values_BL.flatten(0, 1)
        return flat.index_select(0, self.places_T.clamp(max=len(flat) - 1))[None]

    def attend(self, *tensors: Any, dropout: float, scaling: float) -> torch.Tensor:
        """Attend within each row, see ``packed_attention.attend``."""
        attended: torch.Tensor = kernel().attend(*tensors, self, dropout=dropout, scaling=scaling)
        return attended

    def pad(self, values_1T: torch.Tensor, rows: int) -> torch.Tensor:
        """Return ``(B, L, ...)`` of ``(1, T, ...)``, zeros for padding."""
        count = rows * self.longest
        flat = values_1T.new_zeros((count + 1, *values_1T.shape[2:])).index_copy(0, self.places_T, values_1T[0])
        return flat[:count].unflatten(0, (rows, self.longest))


def pack_rows(mask_BL: np.ndarray, multiple: int = 1) -> list[np.ndarray]:
    """Return ``places_T`` and ``starts`` of ``Packed`` for padded rows.

    Args:
        multiple: tokens are filled up to one of it, so that batches are of few sizes: with rows of their own, which
            attend to each other alone.
    """
    rows, longest = mask_BL.shape
    places = np.flatnonzero(mask_BL)
    total = -(-len(places) // multiple) * multiple
    ends = mask_BL.sum(axis=1).cumsum()
    more = np.minimum(ends[-1] + longest * np.arange(1, 1 + (multiple + longest - 2) // longest), total)
    filled = np.full(total - len(places), rows * longest)
    return [np.concatenate([places, filled]), np.concatenate([[0], ends, more])]


def kernel() -> Any:
    """Return the module of the kernel, by its name: copies of this file in exported folders do without."""
    return import_module("cse.model.packed_attention")


@cache
def has_kernel() -> bool:
    """Return whether Triton is there and can compile, which takes a C compiler and Python's headers."""
    headers = Path(get_path("include"), "Python.h").is_file()
    return find_spec("triton") is not None and headers and any(which(name) for name in ("cc", "gcc", "clang"))


def on_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return int64 arrays as tensors on a device: one copy from pinned memory, which nobody waits for.

    On the CPU, the tensors share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return as_parts(in_one(arrays).to(device, non_blocking=True), arrays)


def in_one(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    """Return the numbers of int64 arrays, one array behind the other, in pinned memory."""
    flat = torch.empty(sum(array.size for array in arrays), dtype=torch.int64, pin_memory=True)
    np.concatenate([array.ravel() for array in arrays], out=flat.numpy())
    return flat


def as_parts(flat: torch.Tensor, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """Return the parts of what ``in_one`` made, shaped as the arrays were."""
    parts = flat.split([array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]


def pinned(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array of any kind and shape as a tensor on a device, likewise."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
