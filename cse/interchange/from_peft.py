"""Import a prefix that PEFT trained (``PREFIX_TUNING``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.interchange.assemble import Imported, build
from cse.interchange.layouts import CLS, POOLERS, RAW_CLS
from cse.interchange.prefix_table import columns_of
from cse.interchange.same_model import check_shapes
from cse.interchange.weight_files import find_file, read_tensors
from cse.model.backbone import Backbone
from cse.model.declared import read_json
from cse.runtime.seal import sha256, short

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
TABLE = "prompt_embeddings"
_KIND = "PREFIX_TUNING"
_READS = (RAW_CLS, "avg", "avg_top2", "avg_first_last")


def import_peft(source: Path, backbone: Backbone, *, pooler: str | None) -> Imported:
    """Read an adapter folder of PEFT.

    PEFT stores a prefix as one table ``(P, 2 * layers * H * K)``, also where it was trained through a network, and lets
    the library count it as past tokens: positions of the text start after it.

    Args:
        source: the adapter's folder.
        backbone: its base model.
        pooler: how an embedding is read; no adapter says it.

    Raises:
        CseError: another kind of adapter, another base model's shape, or a tensor is missing or unknown.
    """
    if pooler is None:
        raise CseError(f"--pooler: no adapter says how an embedding is read; give one of {', '.join(_READS)}")
    if pooler not in _READS:
        reason = "needs a projector, which no prefix adapter has" if pooler == CLS else "is not for adapters"
        raise CseError(f"--pooler {pooler}: {reason}; give one of {', '.join(_READS)}")
    config = _read_config(source)
    _check_shape(config, backbone, source / CONFIG)
    path = find_file(source, FILES)
    tensors = read_tensors(path)
    length: int = config["num_virtual_tokens"]
    table = tensors.get(TABLE)
    if table is None:
        raise CseError(f"{path}: lacks {TABLE}; a model without its prompts is the bare backbone")
    wanted = {TABLE: table.new_empty((length, columns_of(backbone)), device="meta")}
    check_shapes(tensors, wanted, path, f"a prefix of {length} on {backbone.files.name}")
    encoder = build(backbone, POOLERS[pooler], table=table.float(), frozen=True)
    base = config.get("base_model_name_or_path")
    origin = {"layout": "peft", "pooler": pooler, "file": path.name, "sha256": sha256(path), "left_out": {}}
    return Imported(
        encoder,
        {"imported": origin},
        [
            f"prefix: {length} keys and values in each layer; positions of the text start after them, as in PEFT",
            f"note: an adapter holds no weights of its base model ({base}); that {backbone.files.name} is this model "
            "is taken on trust",
        ],
    )


def _read_config(source: Path) -> dict[str, Any]:
    path = source / CONFIG
    if not path.is_file():
        raise CseError(f"{source}: holds no {CONFIG}; give the folder of a PEFT adapter")
    config = read_json(path)
    kind = config.get("peft_type")
    if kind != _KIND:
        raise CseError(
            f"{path}: peft_type is {str(kind)[:40]}, and only {_KIND} has prompts that fit here; merge others with PEFT"
        )
    if config.get("num_transformer_submodules") not in (None, 1):
        raise CseError(f"{path}: made for an encoder and a decoder; only encoders embed here")
    if config.get("modules_to_save"):
        raise CseError(f"{path}: modules_to_save holds further trained layers, which have no place here")
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
