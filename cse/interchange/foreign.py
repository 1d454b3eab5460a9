"""What all models of other code bases need: their weights read, compared with a backbone, and what of ours fits."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from cse.artifact import short
from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.backbone_files import BackboneFiles, read_tokenizer
from cse.model.declared import read_json, reading
from cse.model.flow import Flow
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder

MODEL_FILES = ("model.safetensors", "pytorch_model.bin")
AGAIN = "fetch it again"
_POOLERS = ("cls", "mean", "last")  # that other tools have too
_NAME_IT = "name the backbone that it was trained on"
_CONFIG = (
    "model_type", "num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "hidden_act",
    "layer_norm_eps", "type_vocab_size", "vocab_size", "max_position_embeddings", "pad_token_id",
    "position_embedding_type",
)  # fmt: skip
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")


class Imported(NamedTuple):
    """A model that was read from another code's files: our encoder, the facts of its checkpoint, lines to tell."""

    encoder: SentenceEncoder
    facts: dict[str, Any]
    lines: list[str]


def find_file(source: Path, names: Sequence[str]) -> Path:
    """Return the weight file that a user means: the file itself, or the one of these names in a folder."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise CseError(f"{source}: no such file or folder; give the folder of a released model, or its weight file")
    found = [source / name for name in names if (source / name).is_file()]
    if not found:
        raise CseError(f"{source}: holds neither {' nor '.join(names)}; give the folder of a released model")
    if len(found) > 1:
        raise CseError(f"{source}: holds {' and '.join(path.name for path in found)}; name the file that counts")
    return found[0]


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return a file's tensors by name, on the CPU; it is of safetensors or of torch. No code of the file is run."""
    safe = path.suffix == ".safetensors"
    with reading(f"{path}: truncated or not a {'safetensors file' if safe else 'file of torch'}"):
        try:
            tree: Any = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # whose text tells how to run a file's code
            if "global" in str(error).lower():
                words = "holds more than tensors, and no code of a file is run; save its weights alone"
                raise CseError(f"{path}: {words}") from None
            raise ValueError("no pickle of tensors") from None
    items = tree.items() if isinstance(tree, dict) else ()
    if not items or not all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in items):
        raise CseError(f"{path}: holds no tensors by name; give the file of a model's weights")
    return tree


def check_beside(folder: Path, backbone: Backbone) -> None:
    """Compare the config and vocabulary beside a weight file, as far as they are there, with the backbone's.

    Shapes alone do not tell 4 heads from 8, or two vocabularies of one size.
    """
    path, own = folder / "config.json", backbone.model.config.to_dict()
    check_config(read_json(path), {key: own[key] for key in _CONFIG if key in own}, path, backbone.files.name)
    if any((folder / name).is_file() for name in _VOCABULARIES):
        words = read_tokenizer(BackboneFiles(str(folder), "", folder, "")).get_vocab(with_added_tokens=True)
        known = backbone.tokenizer.get_vocab(with_added_tokens=True)
        if different := words.items() ^ known.items():
            word = min(different)[0]
            raise CseError(
                f"{folder}: its vocabulary is not that of {backbone.files.name}: {word!r} differs; {_NAME_IT}"
            )


def check_config(config: Mapping[str, Any], own: Mapping[str, Any], path: Path, who: str) -> None:
    """Refuse a config that says other than what ``who`` has; it may say nothing."""
    for key, value in own.items():
        if config.get(key) not in (None, value):
            raise CseError(f"{path}: {key} is {short(config[key])}, but {who} has {short(value)}; {_NAME_IT}")


def check_shapes(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], path: Path, who: str) -> None:
    """Refuse missing, extra, wrongly shaped or not finite tensors."""
    for name in sorted(wanted.keys() - found.keys()):
        raise CseError(f"{path}: lacks {name}, which {who} has; {_NAME_IT}")
    for name in sorted(found.keys() - wanted.keys()):
        raise CseError(f"{path}: {name} is unknown to {who}; {_NAME_IT}")
    for name, tensor in found.items():
        shape, needed = tuple(tensor.shape), tuple(wanted[name].shape)
        if shape != needed:
            raise CseError(f"{path}: {name} has shape {shape}, but {who} needs {needed}; {_NAME_IT}")
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise CseError(f"{path}: {name} holds values that are not finite numbers; {AGAIN}")


def fill(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], path: Path, who: str) -> int:
    """Copy a file's tensors over the weights of these names, see ``check_shapes``; return how many of them changed."""
    check_shapes(found, wanted, path, who)
    with torch.no_grad():
        changed = sum(not torch.equal(wanted[name], tensor.float()) for name, tensor in found.items())
        for name, tensor in found.items():
            wanted[name].copy_(tensor)
    return changed


def prompt_of(tensors: Mapping[str, torch.Tensor], name: str, backbone: Backbone, path: Path) -> Prompt:
    """Return a prompt from the table of its keys and values ``(P, 2 * layers * H * K)``, a prefix's one tensor."""
    if name not in tensors:
        raise CseError(f"{path}: lacks {name}; a model without its prompts is the bare backbone")
    length = tensors[name].shape[0] if tensors[name].dim() else 0
    if length == 0:
        raise CseError(f"{path}: {name} is empty; {AGAIN}")
    prompt = Prompt("key_value", backbone, length=length)
    fill(tensors, {name: prompt.values()}, path, f"a prefix on {backbone.files.name}")
    return prompt


def obstacle(encoder: SentenceEncoder) -> str:
    """Return what no other tool has a place for, or an empty string."""
    prompt = encoder.prompt
    rows = (
        (not isinstance(encoder.backbone, Backbone), "it reads word vectors from a file and has no layers"),
        (prompt is not None and not prompt.deep, "its input-layer prompt has no keys and values of its own"),
        (bool(encoder.templates), "its template puts words around the sentence"),
        (isinstance(encoder.post, Flow), "it has post-processing (flow)"),
        (encoder.pooler not in _POOLERS, f"its pooler is {encoder.pooler}, not one of {', '.join(_POOLERS)}"),
    )
    return next((words for refused, words in rows if refused), "")


def stacked_prefix(encoder: SentenceEncoder) -> torch.Tensor:
    """Return a deep prompt's keys and values ``(layers, 2, H, P, K)``, on the CPU; ``P`` is 0 without a prompt."""
    backbone = encoder.backbone
    with torch.no_grad():
        prefix = encoder.prefix()
        if prefix is None:
            return torch.empty((backbone.layers, 2, backbone.heads, 0, backbone.head_size))
        return torch.stack([torch.stack(pair) for pair in prefix]).float().cpu()
