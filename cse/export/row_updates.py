"""Biases and low-rank updates of a backbone's layers that differ by row: read from a trained encoder, and applied.

Legend: ``B`` rows, ``L`` tokens, ``r`` rank, ``i`` inputs of the linear layers that take low-rank updates, one after
the other, ``o`` their outputs, ``x`` outputs of all other layers with a bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import local
from typing import Any

import torch
from torch import nn

from cse.errors import CseError, nearest
from cse.model.backbone import Backbone, linear_layers, load_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.domain import UPDATES

ALL = "all"  # as the name of a layer
KINDS = ("biases", "lora")  # of ``train.parameters``


class RowUpdates:
    """Where a backbone takes updates.

    Args:
        backbone: the language model; what it computes outside ``applied`` stays as it is.
        layers: which linear layers of its blocks take low-rank updates, by the ends of their paths (``query``), as
            PEFT's ``target_modules``; ``all`` stands for all. Every layer takes biases.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[str]) -> None:
        paths = linear_layers(backbone)
        for name in layers:
            if name != ALL and not any(_ends(path, name) for path in paths.values()):
                known = dict.fromkeys(path.rpartition(".")[2] for path in paths.values())
                raise CseError(
                    f"bank.adapters: no layer of {backbone.files.name} is called {name[:80]!r}"
                    f"{nearest(name, known)}; it has {', '.join(known)}"
                )
        self.linear: list[Any] = [
            layer for layer, path in paths.items() if ALL in layers or any(_ends(path, name) for name in layers)
        ]
        self.others: list[Any] = [
            module
            for module in backbone.modules()
            if module not in self.linear and isinstance(getattr(module, "bias", None), nn.Parameter)
        ]
        self._now = local()  # threads share the layers, and each has rows of its own

    @property
    def widths(self) -> dict[str, int]:
        """Length of the last axis of each of ``UPDATES``."""
        columns = [layer.weight.shape for layer in self.linear]
        widths = (sum(c[1] for c in columns), sum(c[0] for c in columns), sum(len(one.bias) for one in self.others))
        return dict(zip(UPDATES, widths, strict=True))

    @contextmanager
    def applied(self, down: torch.Tensor, up: torch.Tensor, rest: torch.Tensor) -> Iterator[None]:
        """Inside the block, the layers add each row's own updates to what they return.

        A bias is one more rank whose input is always 1, so a linear layer adds once for both.

        Args:
            down: ``(B, r, i)``.
            up: ``(B, 1 + r, o)``: biases first.
            rest: ``(B, x)``.
        """
        downs = _parts(down, [layer.weight.shape[1] for layer in self.linear])
        ups = _parts(up, [layer.weight.shape[0] for layer in self.linear])
        rests = _parts(rest, [len(one.bias) for one in self.others])
        self._now.given = dict(zip(self.linear, zip(downs, ups, strict=True), strict=True))
        self._now.given |= {layer: (bias_BK,) for layer, bias_BK in zip(self.others, rests, strict=True)}
        try:
            yield
        finally:
            self._now.given = {}

    def attach(self) -> RowUpdates:
        """Let the layers add what ``applied`` gives them."""
        for layer in (*self.linear, *self.others):
            layer.register_forward_hook(self._hook())
        return self

    def _hook(self) -> Callable[..., torch.Tensor | None]:
        now = self._now

        def hook(layer: nn.Module, given: tuple[torch.Tensor, ...], found: torch.Tensor) -> torch.Tensor | None:
            own = getattr(now, "given", {}).get(layer)
            if own is None:
                return None
            return _with_low_rank(found, given[0], *own) if len(own) == 2 else _with_bias(found, *own)

        return hook


def _ends(path: str, name: str) -> bool:
    return f".{path}".endswith(f".{name}")


def _parts(tensor: torch.Tensor, widths: list[int]) -> list[torch.Tensor]:
    # not ``split``: onnxruntime cannot load one whose sizes lie in the file of weights
    ends = list(accumulate(widths))
    return [tensor[..., end - width : end] for end, width in zip(ends, widths, strict=True)]


def _with_low_rank(
    found_BLO: torch.Tensor, given_BLI: torch.Tensor, down_BRI: torch.Tensor, up_BRO: torch.Tensor
) -> torch.Tensor:
    thin_BLR = given_BLI @ down_BRI.transpose(1, 2)
    return found_BLO + torch.cat([torch.ones_like(thin_BLR[:, :, :1]), thin_BLR], dim=2) @ up_BRO


def _with_bias(found: torch.Tensor, bias_BK: torch.Tensor) -> torch.Tensor:
    return found + bias_BK.view(-1, *[1] * (found.ndim - 2), bias_BK.shape[1])


def updates_of(encoder: SentenceEncoder, layers: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return what training added to the layers of an encoder's backbone, by the names of ``UPDATES``.

    Args:
        encoder: whose ``trained`` is one of ``KINDS``.
        layers: as of ``RowUpdates``.
    """
    own = RowUpdates(encoder.transformer, layers)
    inputs, outputs, others = own.widths.values()
    if encoder.trained == "lora":
        factors: dict[Any, Any] = {
            layer: layer.parametrizations.weight[0]  # type: ignore[union-attr, index]
            for layer in linear_layers(encoder.transformer)
        }
        for layer, path in linear_layers(encoder.transformer).items():
            if layer not in own.linear and factors[layer].up.any():
                raise CseError(
                    f"layer {path} has a low-rank update, and the bank takes those of {', '.join(layers) or 'no layer'}"
                    " alone (bank.adapters)"
                )
        chosen = [factors[layer] for layer in own.linear]
        down = torch.cat([torch.zeros(encoder.lora_rank, 0), *(one.down for one in chosen)], dim=1)
        up = torch.cat([torch.zeros(encoder.lora_rank, 0), *(one.up.T for one in chosen)], dim=1)
        tensors = (down, torch.cat([torch.zeros(1, outputs), up]), torch.zeros(others))
    else:
        before = RowUpdates(load_backbone(encoder.backbone.files), layers)
        up = torch.cat([torch.zeros(0), *map(_change, own.linear, before.linear)])[None]
        rest = torch.cat([torch.zeros(0), *map(_change, own.others, before.others)])
        tensors = (torch.zeros(0, inputs), up, rest)
    return {name: tensor.detach() for name, tensor in zip(UPDATES, tensors, strict=True)}


def _change(layer: Any, before: Any) -> torch.Tensor:
    """Return the difference of a layer's bias ``(o,)`` from what it was; zeros if it has none."""
    return torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias - before.bias
