"""Whether a file belongs to the backbone that was named: shapes, values, config and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.backbone_files import BackboneFiles, read_tokenizer
from cse.model.declared import read_json

_CONFIG = (
    "model_type", "num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "hidden_act",
    "layer_norm_eps", "type_vocab_size", "vocab_size", "max_position_embeddings", "pad_token_id",
    "position_embedding_type",
)  # fmt: skip
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
_NAME_IT = "name the backbone that it was trained on"


def check_beside(folder: Path, backbone: Backbone) -> None:
    """Compare the config and vocabulary beside a weight file, as far as they are there, with the backbone's.

    Shapes alone do not tell 4 heads from 8, or two vocabularies of one size.
    """
    own = backbone.model.config.to_dict()
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json")
        for key in _CONFIG:
            if key in config and key in own and config[key] != own[key]:
                raise CseError(
                    f"{folder / 'config.json'}: {key} is {config[key]}, but {backbone.files.name} has {own[key]}; "
                    f"{_NAME_IT}"
                )
    if any((folder / name).is_file() for name in _VOCABULARIES):
        words = read_tokenizer(BackboneFiles(str(folder), "", folder, "")).get_vocab(with_added_tokens=True)
        known = backbone.tokenizer.get_vocab(with_added_tokens=True)
        different = sorted(word for word in words.keys() | known.keys() if words.get(word) != known.get(word))
        if different:
            raise CseError(
                f"{folder}: its vocabulary is not that of {backbone.files.name}: {different[0]!r} differs; {_NAME_IT}"
            )


def check_shapes(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], path: Path, who: str, said: str = ""
) -> None:
    """Refuse missing, extra, wrongly shaped or not finite tensors.

    Args:
        said: what stands before these names in the file.
    """
    for name in sorted(wanted.keys() - found.keys()):
        raise CseError(f"{path}: lacks {said}{name}, which {who} has; {_NAME_IT}")
    for name in sorted(found.keys() - wanted.keys()):
        raise CseError(f"{path}: {said}{name} is unknown to {who}; {_NAME_IT}")
    for name, tensor in found.items():
        shape, needed = tuple(tensor.shape), tuple(wanted[name].shape)
        if shape != needed:
            raise CseError(f"{path}: {said}{name} has shape {shape}, but {who} needs {needed}; {_NAME_IT}")
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise CseError(f"{path}: {said}{name} holds values that are not finite numbers; fetch it again")


def check_frozen(found: Mapping[str, torch.Tensor], backbone: Backbone, path: Path, said: str) -> None:
    """Compare the frozen language model in a file with the backbone, bit by bit in the file's precision."""
    wanted = dict(backbone.model.named_parameters())
    check_shapes(found, wanted, path, backbone.files.name, said)
    for name, tensor in found.items():
        own = wanted[name].detach().to(tensor.dtype)
        if not torch.equal(own, tensor):
            off = (own.double() - tensor.double()).abs().max().item()
            raise CseError(
                f"{path}: {said}{name} differs from that of {backbone.files.name} by up to {off:.1e}; its prompts were "
                f"trained on another model, {_NAME_IT}"
            )
