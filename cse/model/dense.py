"""Linear layers that a model of sentence-transformers has behind its pooling, such as EmbeddingGemma's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from cse.errors import CseError
from cse.model.declared import read_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# as torch and sentence-transformers name them
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "torch.nn.modules.linear.Identity": nn.Identity,
    "torch.nn.modules.activation.Tanh": nn.Tanh,
    "torch.nn.modules.activation.ReLU": nn.ReLU,
    "torch.nn.modules.activation.GELU": nn.GELU,
}


def read_dense(folders: Sequence[Path], width: int) -> nn.Sequential | None:
    """Read the layers behind the pooling, in order; None if there are none.

    Args:
        folders: of the modules, each with its configuration and weights.

    Returns:
        From ``(B, width)`` to ``(B, D)``, as wide as the last layer says.
    """
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
    try:
        tensors = load_file(folder / WEIGHTS)
        weight, bias = tensors["linear.weight"].float(), tensors.get("linear.bias")
        layer = nn.Linear(weight.shape[1], weight.shape[0] or -1, bias=bias is not None)  # no output: refused
        layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias.float()}))
    except (OSError, SafetensorError, LookupError, RuntimeError):  # the last two: other shapes
        raise CseError(f"backbone.name: {folder / WEIGHTS} is missing or damaged; fetch it again") from None
    return layer
