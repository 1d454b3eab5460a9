"""Import a prefix or low-rank updates that PEFT trained (``PREFIX_TUNING``, ``LORA``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cse.choices import ReadOut
from cse.errors import CseError
from cse.interchange.assemble import Imported, build
from cse.interchange.layouts import CLS, POOLERS, RAW_CLS
from cse.interchange.prefix_table import columns_of
from cse.interchange.same_model import check_shapes
from cse.interchange.weight_files import find_file, read_tensors
from cse.model.backbone import Backbone, linear_layers
from cse.model.declared import read_json
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.seal import sha256, short

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
TABLE = "prompt_embeddings"
_PREFIX, _LORA = "PREFIX_TUNING", "LORA"
_STARTS = "base_model.model."  # of every name in an adapter
_FACTORS = {"lora_A.weight": "down", "lora_B.weight": "up"}
# settings of LoRA that change what its tensors mean, and the values with which they do not
_PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": (None, "none"),
    "use_dora": (None, False),
    "use_qalora": (None, False),
    "lora_bias": (None, False),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "layer_replication": (None,),
    "init_lora_weights": (None, True, False, "gaussian"),  # others change the base model too
}
_READS = (RAW_CLS, "avg", "avg_top2", "avg_first_last")


def import_peft(source: Path, backbone: Backbone, *, pooler: str | None) -> Imported:
    """Read an adapter folder of PEFT.

    LoRA becomes what ``train.parameters: lora`` trains: layers that it leaves alone get updates of zero.

    PEFT stores a prefix as one table ``(P, 2 * layers * H * K)``, also where it was trained through a network, and lets
    the library count it as past tokens: positions of the text start after it.

    Args:
        pooler: how an embedding is read; no adapter says it.
    """
    if pooler is None:
        raise CseError(f"--pooler: no adapter says how an embedding is read; give one of {', '.join(_READS)}")
    if pooler not in _READS:
        reason = "needs a projector, which no adapter has" if pooler == CLS else "is not for adapters"
        raise CseError(f"--pooler {pooler}: {reason}; give one of {', '.join(_READS)}")
    config = _read_config(source)
    path = find_file(source, FILES)
    tensors = read_tensors(path)
    origin = {"layout": "peft", "pooler": pooler, "file": path.name, "sha256": sha256(path), "left_out": {}}
    note = (
        f"note: an adapter holds no weights of its base model ({config.get('base_model_name_or_path')}); that "
        f"{backbone.files.name} is this model is taken on trust"
    )
    if config["peft_type"] == _LORA:
        encoder, said = _low_rank(config, tensors, backbone, path, POOLERS[pooler])
        return Imported(encoder, {"imported": origin}, [said, note])
    _check_shape(config, backbone, source / CONFIG)
    length: int = config["num_virtual_tokens"]
    table = tensors.get(TABLE)
    if table is None:
        raise CseError(f"{path}: lacks {TABLE}; a model without its prompts is the bare backbone")
    wanted = {TABLE: table.new_empty((length, columns_of(backbone)), device="meta")}
    check_shapes(tensors, wanted, path, f"a prefix of {length} on {backbone.files.name}")
    encoder = build(backbone, POOLERS[pooler], table=table.float(), frozen=True)
    return Imported(
        encoder,
        {"imported": origin},
        [
            f"prefix: {length} keys and values in each layer; positions of the text start after them, as in PEFT",
            note,
        ],
    )


def _low_rank(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], backbone: Backbone, path: Path, read_out: ReadOut
) -> tuple[SentenceEncoder, str]:
    """Return an encoder with the low-rank updates of a file, and what to tell about them."""
    downs = [tensor for name, tensor in tensors.items() if name.endswith("lora_A.weight") and tensor.ndim == 2]
    rank = max(map(len, downs), default=0)
    if not rank:
        raise CseError(f"{path}: has no lora_A.weight; fetch it again")
    encoder = build(backbone, read_out, frozen=False, lora_rank=rank)
    model: Any = backbone.model
    inside = f"{_STARTS}{model.base_model_prefix}."  # of an adapter of a model with a head
    start = inside if any(name.startswith(inside) for name in tensors) else _STARTS
    layers = linear_layers(backbone)
    found = {name: layer for name, layer in model.named_modules() if layer in layers}
    targets = {
        f"{start}{name}.{key}": getattr(layer.parametrizations.weight[0], factor)
        for name, layer in found.items()
        for key, factor in _FACTORS.items()
    }
    touched = {name.rpartition(".lora_")[0] for name in tensors}
    wanted = {name: target for name, target in targets.items() if name.rpartition(".lora_")[0] in touched}
    check_shapes(tensors, wanted, path, f"LoRA of rank {rank} on the layers of {backbone.files.name}")
    # PEFT scales the product by alpha / r, or alpha / sqrt(r); here nothing does
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    with torch.no_grad():
        for name, target in targets.items():
            if name not in tensors:
                target.zero_()
            else:
                target.copy_(tensors[name].float() * (scale if name.endswith("lora_B.weight") else 1.0))
    return encoder, f"LoRA: rank {rank} on {len(touched)} of {len(found)} layers"


def _check_lora(config: dict[str, Any], path: Path) -> None:
    for key, plain in _PLAIN.items():
        if config.get(key) not in plain:
            raise CseError(
                f"{path}: {key} is {short(config[key])}, which has no place here; merge the adapter into its model "
                "with PEFT (merge_and_unload) and name that as the backbone"
            )
    alpha: Any = config.get("lora_alpha")
    if type(alpha) not in (int, float) or not 0 < alpha < float("inf"):
        raise CseError(f"{path}: lora_alpha is {short(alpha)}; fetch the adapter again")


def _read_config(source: Path) -> dict[str, Any]:
    path = source / CONFIG
    if not path.is_file():
        raise CseError(f"{source}: holds no {CONFIG}; give the folder of a PEFT adapter")
    config = read_json(path)
    kind = config.get("peft_type")
    if kind not in (_PREFIX, _LORA):
        raise CseError(
            f"{path}: peft_type is {str(kind)[:40]}, and only {_PREFIX} and {_LORA} fit here; merge others with PEFT"
        )
    if config.get("num_transformer_submodules") not in (None, 1):
        raise CseError(f"{path}: made for an encoder and a decoder; only encoders embed here")
    if config.get("modules_to_save"):
        raise CseError(f"{path}: modules_to_save holds further trained layers, which have no place here")
    if kind == _LORA:
        _check_lora(config, path)
        return config
    length = config.get("num_virtual_tokens")
    if type(length) is not int or not 1 <= length < 2**31:
        raise CseError(f"{path}: num_virtual_tokens is {short(length)}; fetch the adapter again")
    return config


def _check_shape(config: dict[str, Any], backbone: Backbone, path: Path) -> None:
    own = {
        "num_layers": backbone.layers,
        "num_attention_heads": backbone.heads,
        "token_dim": backbone.heads * backbone.head_size,
    }
    for key, value in own.items():
        if config.get(key) not in (None, value):
            raise CseError(
                f"{path}: {key} is {short(config[key])}, but {backbone.files.name} has {value}; name the base model "
                "that it was trained on"
            )
