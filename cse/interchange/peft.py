"""PEFT's adapters: a prompt out as prefix tuning, prefixes and low-rank updates in (``PREFIX_TUNING``, ``LORA``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModel

from cse.artifact import read_object, sha256, short
from cse.choices import ReadOut
from cse.errors import CseError
from cse.export.parity import check_parity
from cse.files import write_json
from cse.interchange.foreign import (
    AGAIN,
    Imported,
    check_config,
    check_shapes,
    find_file,
    obstacle,
    prompt_of,
    read_tensors,
    stacked_prefix,
)
from cse.interchange.released import AVERAGES, POOLERS, RAW_CLS
from cse.model.backbone import Backbone, linear_layers
from cse.model.backbone_files import quietly
from cse.model.declared import Declared
from cse.model.families import FULL, layer_types
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.uses import QUERY

TOOL = "peft"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
TABLE = "prompt_embeddings"
_PREFIX, _LORA = "PREFIX_TUNING", "LORA"
# families whose models take keys and values from outside and number the tokens after them
FAMILIES = ("bert", "roberta", "electra", "llama", "qwen3", "gemma3")


def export_adapter(
    encoder: SentenceEncoder, out: Path, sentences: Sequence[str], *, tolerance: float
) -> dict[str, Any] | None:
    """Write the adapter, load it back with PEFT and publish it if it gives the encoder's vectors after pooling.

    Returns what ``check_parity`` does; None, if PEFT is not installed to compare with.
    """
    if reason := obstacle(encoder) or _own_obstacle(encoder):
        raise CseError(
            f"--format {TOOL}: prefix tuning cannot express this model, because {reason}; use --format "
            "sentence-transformers or onnx"
        )
    with quietly(), publish_folder(out, Kind.PEFT) as folder:
        write_adapter(encoder, folder)
        try:
            import peft
        except ModuleNotFoundError:
            return None
        base = AutoModel.from_pretrained(encoder.backbone.files.folder, dtype=torch.float32)
        use = Declared(max_length=encoder.max_length)
        again = _ThroughPeft(encoder.backbone, read_out=ReadOut(encoder.pooler), use=use)
        again.adapter = peft.PeftModel.from_pretrained(base, str(folder)).eval()
        again.provider = f"{TOOL} {peft.__version__}"
        return check_parity(encoder, again, sentences, tolerance=tolerance, name=TOOL)


def write_adapter(encoder: SentenceEncoder, folder: Path) -> None:
    """Write an encoder's prompt into an empty folder, as ``PeftModel.save_pretrained`` would.

    ``README.md`` says what the adapter's files have no place for: how to cut a text and to pool.
    """
    files, prefix = encoder.backbone.files, stacked_prefix(encoder)
    layers, _, heads, length, width = prefix.shape
    table = prefix.permute(3, 0, 1, 2, 4).reshape(length, -1)  # (P, layers * 2 * H * K)
    save_file({TABLE: table.contiguous()}, folder / WEIGHTS)
    config = {
        "peft_type": _PREFIX,
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": files.name,
        "revision": files.revision,
        "inference_mode": True,
        "num_transformer_submodules": 1,
        "encoder_hidden_size": heads * width,
        "prefix_projection": False,
    }
    write_json(folder / CONFIG, config | _shape_of(length, layers, heads, width))
    card = (
        f"---\nbase_model: {files.name}\nlibrary_name: peft\n---\n\n"
        f"A prompt of {length} keys and values per layer for `{files.name}` (PEFT, prefix tuning).\n\n"
        f"- Cut texts at {encoder.max_length} tokens, special tokens included.\n"
        f"- Pool the last layer's outputs by `{encoder.pooler}`, then scale vectors to unit length.\n"
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _shape_of(length: int, layers: int, heads: int, width: int) -> dict[str, int]:
    """Return what PEFT's config says of a prefix."""
    table = {"num_virtual_tokens": length, "num_layers": layers}
    return table | {"num_attention_heads": heads, "token_dim": heads * width}


def _own_obstacle(encoder: SentenceEncoder) -> str:
    """Return what prefix tuning has no place for, or an empty string."""
    family = encoder.transformer.family.name
    post = None if encoder.post is None else encoder.post.config()["kind"]
    rows = (
        (encoder.side == QUERY, "its prompt is for queries alone"),
        (encoder.prompt is None, "it has no prompt"),
        (not encoder.frozen, "the language model was trained too"),
        (encoder.cls is not None, "its [CLS] vector was trained"),
        (encoder.backbone.dense is not None, "its backbone has layers behind the pooling"),
        (encoder.read_out.mlp == "always", f"it has a projector ({encoder.read_out.projector})"),
        (post is not None, f"it has post-processing ({post})"),
        (family not in FAMILIES, f"models of the {family} family take no keys and values from outside"),
        (not encoder.shift, "its tokens do not start after the prompt's positions (prompt.position_shift: false)"),
        (
            {*layer_types(encoder.transformer.model.config)} != {FULL},
            "its sliding layers would lose sight of the prompt",
        ),
    )
    return next((words for refused, words in rows if refused), "")


class _ThroughPeft(SentenceEncoder):
    """An encoder whose token states PEFT computes."""

    adapter: Any
    provider = TOOL

    def states(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, *_: Any, **__: Any) -> list[torch.Tensor]:
        return [self.adapter(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state]


# ---- in -------------------------------------------------------------------------------------------------------------

_STARTS = "base_model.model."  # of every name in an adapter
_FACTORS = {"lora_A.weight": "down", "lora_B.weight": "up"}
# settings that change what an adapter's tensors mean, and the values beside None with which they do not
_PLAIN: dict[str, tuple[Any, ...]] = {
    "num_transformer_submodules": (1,),  # others are for an encoder and a decoder
    "modules_to_save": ([],),  # further trained layers
    "bias": ("none",),
    "use_dora": (False,),
    "use_qalora": (False,),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "trainable_token_indices": (),
    "target_parameters": ([],),
    "layer_replication": (),
    "init_lora_weights": (True, False, "gaussian"),  # others change the base model too
}
_READS = (RAW_CLS, *AVERAGES)


def import_peft(source: Path, backbone: Backbone, *, pooler: str | None) -> Imported:
    """Read an adapter folder of PEFT.

    LoRA becomes what ``train.parameters: lora`` trains: layers that it leaves alone get updates of zero.

    PEFT stores a prefix as one table ``(P, 2 * layers * H * K)``, also where it was trained through a network, and lets
    the library count it as past tokens: positions of the text start after it.
    """
    if pooler not in _READS:
        given = f" {pooler}" if pooler else ""
        raise CseError(
            f"--pooler{given}: no adapter says how an embedding is read, and none has a projector; give one of "
            f"{', '.join(_READS)}"
        )
    config = _read_config(source)
    path = find_file(source, (WEIGHTS, "adapter_model.bin"))
    tensors = read_tensors(path)
    if config["peft_type"] == _LORA:
        encoder, told = _low_rank(config, tensors, backbone, path, POOLERS[pooler])
    else:
        prompt = prompt_of(tensors, TABLE, backbone, path)
        own = _shape_of(prompt.length, backbone.layers, backbone.heads, backbone.head_size)
        check_config(config, own, source / CONFIG, f"{path.name} on {backbone.files.name}")
        encoder = SentenceEncoder(backbone, prompt, POOLERS[pooler])
        told = (
            f"prefix: {prompt.length} keys and values in each layer; positions of the text start after them, as in PEFT"
        )
    note = (
        f"note: an adapter holds no weights of its base model ({config.get('base_model_name_or_path')}); that "
        f"{backbone.files.name} is this model is taken on trust"
    )
    origin = {"layout": TOOL, "pooler": pooler, "file": path.name, "sha256": sha256(path), "left_out": {}}
    return Imported(encoder, {"imported": origin}, [told, note])


def _read_config(source: Path) -> dict[str, Any]:
    path = source / CONFIG
    if not path.is_file():
        raise CseError(f"{source}: holds no {CONFIG}; give the folder of a PEFT adapter")
    config = read_object(path, AGAIN)
    kind, alpha = config.get("peft_type"), config.get("lora_alpha")
    if kind not in (_PREFIX, _LORA):
        raise CseError(
            f"{path}: peft_type is {short(kind)}, and only {_PREFIX} and {_LORA} fit here; merge others with PEFT"
        )
    for key, plain in _PLAIN.items():
        if config.get(key) not in (None, *plain):
            merge = "; merge the adapter into its model with PEFT (merge_and_unload) and name that as the backbone"
            has = f"{path}: {key} is {short(config[key])}, which has no place here"
            raise CseError(has + (merge if kind == _LORA else ""))
    if kind == _LORA and not (isinstance(alpha, int | float) and 0 < alpha < float("inf")):
        raise CseError(f"{path}: lora_alpha is {short(alpha)}; fetch the adapter again")
    return config


def _low_rank(
    config: dict[str, Any], tensors: dict[str, torch.Tensor], backbone: Backbone, path: Path, read_out: ReadOut
) -> tuple[SentenceEncoder, str]:
    """Return an encoder with the low-rank updates of a file, and what to tell about them."""
    downs = [tensor for name, tensor in tensors.items() if name.endswith("lora_A.weight") and tensor.ndim == 2]
    rank = max(map(len, downs), default=0)
    if not rank:
        raise CseError(f"{path}: has no lora_A.weight; {AGAIN}")
    encoder = SentenceEncoder(backbone, read_out=read_out, trained="lora", lora_rank=rank)
    model: Any = backbone.model
    inside = f"{_STARTS}{model.base_model_prefix}."  # of an adapter of a model with a head
    start = inside if any(name.startswith(inside) for name in tensors) else _STARTS
    known = linear_layers(backbone)
    layers = {f"{start}{name}": layer for name, layer in model.named_modules() if layer in known}
    touched = {name.rpartition(".lora_")[0] for name in tensors}
    wanted: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        update = layer.parametrizations.weight[0]
        if name in touched:
            wanted |= {f"{name}.{key}": getattr(update, factor) for key, factor in _FACTORS.items()}
        else:
            torch.nn.init.zeros_(update.down)
    check_shapes(tensors, wanted, path, f"LoRA of rank {rank} on the layers of {backbone.files.name}")
    # PEFT scales the product by alpha / r, or alpha / sqrt(r); here nothing does
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    with torch.no_grad():
        for name, target in wanted.items():
            target.copy_(tensors[name].float() * (scale if name.endswith("lora_B.weight") else 1.0))
    return encoder, f"LoRA: rank {rank} on {len(touched)} of {len(layers)} layers"
