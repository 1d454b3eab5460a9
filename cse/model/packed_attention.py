# mypy: allow-untyped-defs
# ruff: noqa: ANN001, ANN002, ANN202, ANN205, C901
"""Attention over rows of tokens that lie one behind the other, with a prompt before each row: a kernel for a GPU.

Short rows leave most of a padded batch empty, and torch's kernels need the prompt's keys and values copied in front of
each row's. Here a program computes one head of a few rows in turn: all scores of a row fit into registers, so the
gradient computes them again and nothing but queries, keys and values is kept. Dropout of shares and of the prompt
follows from one seed, 16 random bits an entry, as in ``cse.model.dropout``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import triton
import triton.language as tl

from cse.model.passes import Packed

_log = logging.getLogger("cse")

_LEVELS = 1 << 16
_ROWS = 4  # of a program
_WARPS = {16: 1, 32: 2}  # of a program, by the tokens of its rows
_ROUNDING = 2e-2  # of bf16, of the norm
_NONE: tl.constexpr = tl.constexpr(-1.0e30)  # a score that is not there; finite, so that a row without any is no NaN


@triton.jit
def _bits(seed, number):
    """Return 32 random bits for each number: Wellons's lowbias32, with half of the seed before each multiplication."""
    x = number.to(tl.uint32) ^ (seed & 0xFFFFFFFF).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) + (seed >> 32).to(tl.uint32)
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(bits, cut, scale):
    return tl.where((bits & 0xFFFF).to(tl.int32) >= cut, scale, 0.0)


@triton.jit
def _attend(
    query, key, value, prompt_key, prompt_value, starts, seed,
    out, grad, grad_query, grad_key, grad_value, grad_prompt_key, grad_prompt_value,
    rows, heads, scale, share_cut, share_scale, prompt_cut, prompt_scale,
    query_t, query_h, key_t, key_h, value_t, value_h, key_pt, key_ph, value_pt, value_ph,
    P: tl.constexpr, BP: tl.constexpr, BL: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, LEAST: tl.constexpr,
    SHARES: tl.constexpr, PROMPTS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    at_l, at_k, at_p = tl.arange(0, BL), tl.arange(0, K), tl.arange(0, BP)
    real_p = at_p[:, None] < P
    dtype = query.dtype.element_ty
    sum_key = tl.zeros([BP, K], tl.float32)
    sum_value = tl.zeros([BP, K], tl.float32)
    chosen = tl.load(seed)
    for i in range(ROWS):
        row = block * ROWS + i
        start = tl.load(starts + row, mask=row < rows, other=0)
        length = tl.load(starts + row + 1, mask=row < rows, other=0) - start
        if (length > LEAST) & (length <= BL):
            real_l = at_l < length
            token, mask = start + at_l[:, None], real_l[:, None]
            q = tl.load(query + token * query_t + head * query_h + at_k[None, :], mask=mask, other=0.0)
            k = tl.load(key + token * key_t + head * key_h + at_k[None, :], mask=mask, other=0.0)
            v = tl.load(value + token * value_t + head * value_h + at_k[None, :], mask=mask, other=0.0)
            own = (row * heads + head) * (
                BL * BL + BL * BP + BP * K
            )  # the first of the numbers that its bits follow from
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(real_l[None, :], scores, _NONE)
            most = tl.max(scores, 1)
            if P > 0:
                at = head * key_ph + at_p[:, None] * key_pt + at_k[None, :]
                pk = tl.load(prompt_key + at, mask=real_p, other=0.0).to(dtype)
                at = head * value_ph + at_p[:, None] * value_pt + at_k[None, :]
                pv = tl.load(prompt_value + at, mask=real_p, other=0.0).to(dtype)
                if PROMPTS:
                    bits = _bits(chosen, own + BL * BL + BL * BP + at_p[:, None] * K + at_k[None, :])
                    pk = (pk * _kept(bits, prompt_cut, prompt_scale)).to(dtype)
                    pv = (pv * _kept(bits >> 16, prompt_cut, prompt_scale)).to(dtype)
                ahead = tl.dot(q, tl.trans(pk), input_precision="ieee") * scale
                ahead = tl.where(at_p[None, :] < P, ahead, _NONE)
                most = tl.maximum(most, tl.max(ahead, 1))
                ahead = tl.exp(ahead - most[:, None])
            scores = tl.exp(scores - most[:, None])
            total = tl.sum(scores, 1)
            if P > 0:
                total += tl.sum(ahead, 1)
                ahead = ahead / total[:, None]
            scores = scores / total[:, None]
            shares = scores
            if SHARES:
                kept = _kept(_bits(chosen, own + at_l[:, None] * BL + at_l[None, :]), share_cut, share_scale)
                shares = scores * kept
            if P > 0:
                shares_ahead = ahead
                if SHARES:
                    bits = _bits(chosen, own + BL * BL + at_l[:, None] * BP + at_p[None, :])
                    kept_ahead = _kept(bits, share_cut, share_scale)
                    shares_ahead = ahead * kept_ahead
            at_out = (token * heads + head) * K + at_k[None, :]
            if BACK:
                g = tl.load(grad + at_out, mask=mask, other=0.0)
                made = tl.dot(tl.trans(shares.to(dtype)), g, input_precision="ieee")
                tl.store(grad_value + at_out, made.to(dtype), mask=mask)
                towards = tl.dot(g, tl.trans(v), input_precision="ieee")
                if SHARES:
                    towards = towards * kept
                mean = tl.sum(scores * towards, 1)
                if P > 0:
                    ahead_towards = tl.dot(g, tl.trans(pv), input_precision="ieee")
                    if SHARES:
                        ahead_towards = ahead_towards * kept_ahead
                    mean += tl.sum(ahead * ahead_towards, 1)
                    slope_ahead = (ahead * (ahead_towards - mean[:, None]) * scale).to(dtype)
                    to_key = tl.dot(tl.trans(slope_ahead), q, input_precision="ieee")
                    to_value = tl.dot(tl.trans(shares_ahead.to(dtype)), g, input_precision="ieee")
                    if PROMPTS:
                        bits = _bits(chosen, own + BL * BL + BL * BP + at_p[:, None] * K + at_k[None, :])
                        to_key = to_key * _kept(bits, prompt_cut, prompt_scale)
                        to_value = to_value * _kept(bits >> 16, prompt_cut, prompt_scale)
                    sum_key += to_key
                    sum_value += to_value
                slope = (scores * (towards - mean[:, None]) * scale).to(dtype)
                made = tl.dot(tl.trans(slope), q, input_precision="ieee")
                tl.store(grad_key + at_out, made.to(dtype), mask=mask)
                made = tl.dot(slope, k, input_precision="ieee")
                if P > 0:
                    made = tl.dot(slope_ahead, pk, made, input_precision="ieee")
                tl.store(grad_query + at_out, made.to(dtype), mask=mask)
            else:
                made = tl.dot(shares.to(dtype), v, input_precision="ieee")
                if P > 0:
                    made = tl.dot(shares_ahead.to(dtype), pv, made, input_precision="ieee")
                tl.store(out + at_out, made.to(dtype), mask=mask)
    if BACK and P > 0:
        at = ((block * heads + head) * P + at_p[:, None]) * K + at_k[None, :]
        if LEAST > 0:  # the launch for shorter rows has left theirs
            sum_key += tl.load(grad_prompt_key + at, mask=real_p, other=0.0)
            sum_value += tl.load(grad_prompt_value + at, mask=real_p, other=0.0)
        tl.store(grad_prompt_key + at, sum_key, mask=real_p)
        tl.store(grad_prompt_value + at, sum_value, mask=real_p)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query, key, value, prompt_key, prompt_value, starts, *constants):
        _, shares, prompts, _ = constants
        seed = torch.randint(1 << 62, (1,), device=query.device) if shares > 0.0 or prompts > 0.0 else starts
        tensors = query, key, value, prompt_key, prompt_value, starts, seed
        ctx.save_for_backward(*tensors)
        ctx.constants = constants
        out = _empty(query)
        _launch(tensors, constants, out=out)
        return out

    @staticmethod
    def backward(ctx: Any, grad):
        query, _, _, prompt_key, _, starts, _ = ctx.saved_tensors
        made, sums = [_empty(query) for _ in range(3)], list[torch.Tensor]()
        if prompt_key is not None:
            blocks = triton.cdiv(len(starts) - 1, _ROWS)
            sums = [torch.empty((blocks, *prompt_key.shape), device=grad.device, dtype=torch.float32) for _ in range(2)]
        _launch(ctx.saved_tensors, ctx.constants, grad=grad.contiguous(), made=made, sums=sums or (None, None))
        own = [each.sum(0) for each in sums] if sums else (None, None)
        return *(each.transpose(1, 2) for each in made), *own, *(None,) * 5


def _empty(like_BHTK: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like_BHTK.transpose(1, 2), memory_format=torch.contiguous_format)


def _launch(
    tensors: Sequence[Any], constants: Sequence[Any], *, out: Any = None, grad: Any = None,
    made: Sequence[Any] = (None,) * 3, sums: Sequence[Any] = (None,) * 2,
) -> None:  # fmt: skip
    query, key, value, prompt_key, prompt_value, starts, _ = tensors
    longest, shares, prompts, scale = constants
    rows, heads, width = len(starts) - 1, query.shape[1], query.shape[3]
    length = 0 if prompt_key is None else prompt_key.shape[1]
    cuts = [round(p * _LEVELS) for p in (shares, prompts)]
    strides = [x.stride(at) for x in (query, key, value) for at in (2, 1)]
    strides += [0] * 4 if prompt_key is None else [x.stride(at) for x in (prompt_key, prompt_value) for at in (1, 0)]
    ahead = max(16, triton.next_power_of_2(length))
    grid = triton.cdiv(rows, _ROWS), heads
    least = 0
    for block, warps in _WARPS.items():  # rows of like lengths in one launch
        if least >= longest:
            break
        with torch.cuda.device_of(query):
            _attend[grid](
                *tensors, out, grad, *made, *sums,
                rows, heads, scale, cuts[0], _LEVELS / (_LEVELS - cuts[0]), cuts[1], _LEVELS / (_LEVELS - cuts[1]),
                *strides, P=length, BP=ahead, BL=block, K=width, ROWS=_ROWS, LEAST=least, SHARES=shares > 0.0,
                PROMPTS=prompts > 0.0 and length > 0, BACK=grad is not None, num_warps=warps,
            )  # fmt: skip
        least = block


def attend(
    query_BHTK: torch.Tensor,
    key_BHTK: torch.Tensor,
    value_BHTK: torch.Tensor,
    prefix: tuple[torch.Tensor, torch.Tensor] | None,
    packed: Packed,
    *,
    dropout: float,
    scaling: float,
) -> torch.Tensor:
    """Return the outputs ``(1, T, H, K)`` of rows of at most ``passes.LONGEST`` tokens each."""
    own = (None, None) if prefix is None else prefix
    constants = packed.longest, dropout, packed.prompt_dropout, scaling
    return _Attention.apply(query_BHTK, key_BHTK, value_BHTK, *own, packed.starts, *constants)


@cache
def is_right(device: torch.device, width: int, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Return whether the kernel gives on this card what attention row by row gives, forward and backward.

    Whatever keeps it from that, a driver, a compiler or a mistake, is logged: rows stay padded then.
    """
    ends, heads, prompt = [0, 1, 17, 34, 66], 2, 5
    shapes = [(1, heads, ends[-1], width)] * 3 + [(heads, prompt, width)] * 2
    drawn = torch.Generator().manual_seed(0)
    exact = [torch.randn(shape, generator=drawn).to(dtype).double().requires_grad_() for shape in shapes]
    leaves = [each.detach().to(device, dtype).requires_grad_() for each in exact]
    query, key, value, ahead_key, ahead_value = leaves
    starts = torch.tensor(ends, device=device)
    packed = Packed(starts, starts, 32)
    expected = _by_row(exact, ends)
    towards = torch.randn(expected.shape, generator=drawn).to(dtype)
    try:
        found = attend(query, key, value, (ahead_key, ahead_value), packed, dropout=0.0, scaling=width**-0.5)
        gradients = torch.autograd.grad(found, leaves, towards.to(device))
        pairs = zip(
            (found, *gradients), (expected, *torch.autograd.grad(expected, exact, towards.double())), strict=True
        )
        apart = max(((one.detach().cpu().double() - other).norm() / other.norm()).item() for one, other in pairs)
    except Exception as error:  # whatever a compiler or a driver raises
        _log.warning("rows stay padded: the kernel for packed ones fails: %s", f"{error}".strip().partition("\n")[0])
        return False
    if not apart <= _ROUNDING:
        _log.warning("rows stay padded: the kernel for packed ones is %.0e from what it should give", apart)
    return apart <= _ROUNDING


def _by_row(tensors: Sequence[torch.Tensor], ends: Sequence[int]) -> torch.Tensor:
    query, key, value, ahead_key, ahead_value = tensors
    rows = []
    for start, end in pairwise(ends):
        keys = torch.cat([ahead_key, key[0, :, start:end]], dim=1)
        values = torch.cat([ahead_value, value[0, :, start:end]], dim=1)
        shares = (query[0, :, start:end] @ keys.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(dim=-1)
        rows.append(shares @ values)
    return torch.cat(rows, dim=1).transpose(0, 1)[None]
