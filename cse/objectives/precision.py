"""Losses run in float32 whatever the precision of the encoder: their exponentials need more than bfloat16 holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function compute in float32: half-precision tensors among its arguments are raised, float64 stays.

    Autocast is off inside; it would round the operands of a matrix product to half precision again.
    """

    @functools.wraps(function)
    def raised(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        with torch.autocast(next(tensors).device.type, enabled=False):
            return function(*map(_raise, args), **{name: _raise(value) for name, value in kwargs.items()})

    return raised


def _raise(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value
