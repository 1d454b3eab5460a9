"""Self-attention over ``[prompt | tokens]``, registered with transformers so that it works for every model family.

PromCSE's encoder: the prompt has keys and values but no queries, so it has no outputs and no residual stream.
"""

from __future__ import annotations

from typing import Any

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
        if attention_mask.dtype == torch.bool:
            hidden = ~attention_mask
            attention_mask = torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, float("-inf"))
        scores += attention_mask
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


def per_row(block: torch.Tensor, rows: int) -> torch.Tensor:
    """Return keys or values as ``(B, H, P, K)``, expanded if all rows share them."""
    return block if block.dim() == 4 else block.unsqueeze(0).expand(rows, -1, -1, -1)


AttentionInterface.register(PREFIX_ATTENTION, prefix_attention)
