"""From token outputs to one vector per sentence: published poolers and projectors, and a model's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from safetensors.torch import load_file
from torch import nn

from cse.choices import PoolerKind
from cse.errors import CseError
from cse.model.declared import read_json, reading

POOLERS = get_args(PoolerKind)
OVER_TOKENS = ("cls", "mean", "mean_top2", "mean_first_last", "last")
NEEDS_ALL_LAYERS = {"mean_top2", "mean_first_last"}


def pool(kind: str, states: Sequence[torch.Tensor], counted_BL: torch.Tensor, first_layer: int = 0) -> torch.Tensor:
    """Pool token outputs to ``(B, D)``; means are over real tokens, including ``[CLS]`` and ``[SEP]``.

    Args:
        kind: one of ``OVER_TOKENS``; ``last`` is the last real token, ``mean_top2`` averages the last two layers.
        states: the last layer's output ``(B, L, D)``; for the kinds in ``NEEDS_ALL_LAYERS`` preceded by the embedding
            output and all other layers' outputs.
        counted_BL: 1 for tokens that count; it has no prompt columns, since prompts have no outputs. A row without
            any such token gives zeros.
        first_layer: index into ``states`` of the first layer: 0 embeddings (as published), 1 first block.
    """
    last_BLD = states[-1]
    if kind == "cls":
        return last_BLD[:, 0]
    if kind == "last":
        count_B = counted_BL.sum(dim=1)
        return read_at(last_BLD, (count_B - 1).clamp(min=0)) * (count_B > 0)[:, None]
    if kind == "mean_top2":
        last_BLD = (states[-1] + states[-2]) / 2
    elif kind == "mean_first_last":
        last_BLD = (states[first_layer] + states[-1]) / 2
    weight_BL1 = counted_BL.to(last_BLD.dtype).unsqueeze(-1)
    wide = torch.promote_types(last_BLD.dtype, torch.float32)  # states in 16 bits are summed in 32
    return (last_BLD * weight_BL1).sum(dim=1, dtype=wide) / weight_BL1.sum(dim=1, dtype=wide).clamp(min=1)


def read_at(last_BLD: torch.Tensor, index_B: torch.Tensor) -> torch.Tensor:
    """Return the output ``(B, D)`` at one position of each row."""
    return last_BLD.gather(1, index_B[:, None, None].expand(-1, 1, last_BLD.shape[-1])).squeeze(1)


def start_normal(part: nn.Module) -> None:
    """Initialise a module's linear layers by transformers' rule, as in the released code: normal (0, 0.02), bias 0."""
    for layer in part.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class TokenCnn(nn.Module):
    """IS-BERT's pooler (Zhang et al. 2020): convolutions over the token outputs, whose mean is the sentence vector.

    Windows of 1, 3 and 5 tokens share the width; ReLU; padding is zero at input and output.
    """

    WINDOWS = (1, 3, 5)

    def __init__(self, width: int) -> None:
        super().__init__()
        part = width // len(self.WINDOWS)
        parts = [width - 2 * part, part, part]
        self.windows = nn.ModuleList(
            nn.Conv1d(width, out, size, padding=size // 2) for out, size in zip(parts, self.WINDOWS, strict=True)
        )

    def forward(self, last_BLD: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Map token outputs to local features ``(B, L, D)``."""
        real_BL1 = mask_BL.to(last_BLD.dtype).unsqueeze(-1)
        tokens_BDL = (last_BLD * real_BL1).transpose(1, 2)
        local_BLD = torch.cat([window(tokens_BDL).relu() for window in self.windows], dim=1).transpose(1, 2)
        return local_BLD * real_BL1


class TanhMlp(nn.Module):
    """SimCSE's layer on top of the pooled vector: Linear(D, D) and tanh."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        start_normal(self)

    def forward(self, pooled_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to ``(B, D)``."""
        return torch.tanh(self.dense(pooled_BD))


class BatchNormProjector(nn.Module):
    """DiffCSE's projector (Chuang et al. 2022): Linear(D, 2D), BatchNorm, ReLU, Linear(2D, D), BatchNorm.

    The linear layers have no bias, the last normalisation no affine map. For the loss only: it always normalises with
    the statistics of the current rows, so pass all views of a batch in one call. The linear layers start ``normal`` as
    in the released code (0.02), or as ``torch``'s.
    """

    def __init__(self, width: int, start: str = "normal") -> None:
        super().__init__()
        self.wide = nn.Linear(width, 2 * width, bias=False)
        self.wide_norm = nn.BatchNorm1d(2 * width, track_running_stats=False)
        self.narrow = nn.Linear(2 * width, width, bias=False)
        self.narrow_norm = nn.BatchNorm1d(width, affine=False, track_running_stats=False)
        if start == "normal":
            start_normal(self)

    def forward(self, pooled_BD: torch.Tensor) -> torch.Tensor:
        """Map ``(B, D)`` to ``(B, D)``, with statistics in float32."""
        wide = self.wide_norm(self.wide(pooled_BD).float()).relu()
        return self.narrow_norm(self.narrow(wide).float())


CONFIG, WEIGHTS = "config.json", "model.safetensors"
# as torch and sentence-transformers name them
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "torch.nn.modules.linear.Identity": nn.Identity,
    "torch.nn.modules.activation.Tanh": nn.Tanh,
    "torch.nn.modules.activation.ReLU": nn.ReLU,
    "torch.nn.modules.activation.GELU": nn.GELU,
}


def read_dense(folders: Sequence[Path], width: int) -> nn.Sequential | None:
    """Read the layers behind the pooling, in order; None if there are none."""
    layers: list[nn.Module] = []
    size = width
    for folder in folders:
        config = read_json(folder / CONFIG)
        name = str(config.get("activation_function"))
        if name not in ACTIVATIONS or config.get("module_input_name", _POOLED) != _POOLED:
            what = "another input" if name in ACTIVATIONS else f"the activation {name}"
            raise CseError(f"backbone.name: {folder} has {what}; {_ALONE}")
        layer = _read_layer(folder)
        if layer.in_features != size:
            raise CseError(f"backbone.name: {folder} reads {layer.in_features} numbers and is given {size}; {_ALONE}")
        layers += [layer, ACTIVATIONS[name]()]
        size = layer.out_features
    return nn.Sequential(*layers) if layers else None


_POOLED = "sentence_embedding"
_ALONE = "to use the transformer alone, copy the folder without modules.json"


def _read_layer(folder: Path) -> nn.Linear:
    with reading(f"backbone.name: {folder / WEIGHTS} is missing or damaged"):
        tensors = load_file(folder / WEIGHTS)
        weight, bias = tensors["linear.weight"].float(), tensors.get("linear.bias")
        layer = nn.Linear(weight.shape[1], weight.shape[0] or -1, bias=bias is not None)  # no output: refused
        layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias.float()}))
        return layer
