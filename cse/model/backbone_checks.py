"""Check what a backbone's folder says against its weights, before anything is built from it."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel

from cse.errors import CseError, nearest, one_line
from cse.model.backbone_files import BackboneFiles, weight_files
from cse.model.declared import read_json
from cse.model.families import BY_TYPE, FAMILIES, FULL, SLIDING, layer_types
from cse.runtime.seal import short

_AGAIN = "fetch it again"
_HIGHEST = 2**31  # no number of a model comes near
_LAYERS = ("num_hidden_layers", "n_layers", "num_hidden_groups", "inner_group_num")
_SHARED = 64  # layers that may share their weights, as in ALBERT
_COUNTS = (
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip
_ADDED = 64  # most tokens that a tokenizer may put around a text
_PADDED = 2**16  # tokens
_LETTER = 8  # most tokens of one letter


def checked_config(files: BackboneFiles) -> Any:
    """Return a backbone's configuration as the library reads it."""
    path = files.folder / "config.json"
    tree = read_json(path)
    kind = str(tree.get("model_type"))
    if kind not in BY_TYPE:
        own = "needs code of its own, which is not run" if "auto_map" in tree else f"is a {short(kind)} model"
        raise CseError(
            f"backbone.name: {files.name} {own}{nearest(kind, BY_TYPE)}; use a model of one of the families "
            f"{', '.join(family.name for family in FAMILIES)}"
        )
    if "quantization_config" in tree:
        raise CseError(f"backbone.name: {files.name} holds quantised weights; use the model that they were made from")
    _check_numbers(tree, path)
    shapes = weight_shapes(files)
    for key in _LAYERS:
        if type(tree.get(key)) is int and not 1 <= tree[key] <= max(_SHARED, len(shapes)):
            raise _refused(path, f"{key} is {tree[key]}, and the weights are {len(shapes)} tensors")
    try:
        config: Any = AutoConfig.from_pretrained(files.folder)
        for key in _COUNTS:
            if (count := getattr(config, key, None)) is not None and (type(count) is not int or count < 1):
                raise _refused(path, f"{key} is {short(count)}")
        described = _described(config)
    except CseError:
        raise
    except Exception as error:  # whatever the library's classes say of odd values
        raise _refused(path, one_line(str(error))[:200] or type(error).__name__) from None
    held = sum(map(math.prod, shapes.values()))
    if described > 2 * held:  # below that the names of what is missing say more
        raise _refused(path, f"describes a model of {described:,} weights, and its files hold {held:,}")
    _check_layers(config, path, shapes)
    return config


def _described(config: Any) -> int:
    """Return the number of weights of the model that a configuration describes; it takes no memory."""
    pooler = {"add_pooling_layer": False} if BY_TYPE[config.model_type].own_pooler else {}
    with torch.device("meta"):
        model = AutoModel.from_config(copy.deepcopy(config), **pooler)
    return sum(weight.numel() for weight in model.parameters())


def _check_layers(config: Any, path: Path, names: Iterable[str]) -> None:
    family = BY_TYPE[config.model_type]
    own = re.compile(rf"(?:.*\.)?{re.escape(family.stored or family.layers)}\.(\d{{1,9}})\.")
    there = max((int(found[1]) + 1 for name in names if (found := own.match(name))), default=0)
    count = getattr(config, "num_hidden_groups", config.num_hidden_layers)
    if there != count:
        raise _refused(path, f"describes {count} layers, and its weights {there}")
    kinds = layer_types(config, config.num_hidden_layers)
    if len(kinds) != config.num_hidden_layers or not {*kinds} <= {FULL, SLIDING}:
        raise _refused(path, f"layer_types does not fit {config.num_hidden_layers} layers")
    if SLIDING in kinds and (type(config.sliding_window) is not int or config.sliding_window < 1):
        raise _refused(path, f"sliding_window is {short(config.sliding_window)}")
    pad = config.pad_token_id
    if pad is not None and not 0 <= pad < config.vocab_size:
        raise _refused(path, f"pad_token_id is {pad}, and there are {config.vocab_size} word vectors")


def _check_numbers(value: Any, path: Path, key: str = "") -> None:
    """Refuse numbers that are none, or larger than any that a model needs."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, path, str(name))
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, path, key)
    elif isinstance(value, int | float) and not abs(value) < _HIGHEST:
        raise _refused(path, f"{short(key)} is {short(value)}")


def _refused(path: Path, reason: str) -> CseError:
    return CseError(f"backbone.name: {path}: {reason}; {_AGAIN}")


def weight_shapes(files: BackboneFiles) -> dict[str, list[int]]:
    """Return the shape of each tensor of the weights by its name, from the heads of the files alone."""
    shapes: dict[str, list[int]] = {}
    try:
        for path in weight_files(files.folder):
            with safe_open(path, "pt") as file:
                shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 - no mapping
        return shapes
    except (SafetensorError, OSError) as error:
        reason = one_line(str(error))[:200]
        raise CseError(f"backbone.name: cannot read the weights of {files.name}: {reason}; fetch them again") from None


def check_tokenizer(tokenizer: Tokenizer, vocabulary: int, files: BackboneFiles) -> None:
    """Refuse a tokenizer that makes ids without a word vector, or more of a text than the text."""
    who = f"backbone.name: the tokenizer of {files.name}"
    added = tokenizer.num_special_tokens_to_add(is_pair=False)
    padded = (tokenizer.padding or {}).get("length") or 0
    if added > _ADDED or padded > _PADDED:
        raise CseError(f"{who} puts {max(added, padded):,} tokens around a text; {_AGAIN}")
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= vocabulary:
        raise CseError(
            f"{who} has tokens up to id {highest}, the model {vocabulary} word vectors; they do not match, fetch them "
            "again"
        )
    ids = tokenizer.encode("a").ids
    if max(ids, default=0) >= vocabulary or len(ids) > max(_LETTER, padded) + added:
        raise CseError(f"{who} has a template that repeats the text, or ids beyond {vocabulary} word vectors; {_AGAIN}")
