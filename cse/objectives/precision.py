"""Run losses in float32 regardless of the encoder's precision; their exponentials need more than bfloat16 offers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute in float32: cast half-precision tensor arguments to float32, leave float64 alone.

    Autocast is off inside because it would round the operands of matrix products to half precision again.
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
