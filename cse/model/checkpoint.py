"""A checkpoint: the trained weights without the backbone, and what it says of itself in its manifest, its config."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from cse.artifact import Kind, check_files, digest, open_manifest, write_manifest
from cse.errors import CseError, nearest
from cse.model.backbone import LowRank
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.declared import CONFIG_FILE, check_checkpoint, is_checkpoint, reading
from cse.model.encoder import Encoder
from cse.model.flow import Flow
from cse.model.mlm_head import UNIGRAM
from cse.model.post import LINEAR_KINDS, LinearMap
from cse.model.prompts import INPUT
from cse.model.static_words import StaticWords


def save_checkpoint(encoder: Encoder, folder: Path, facts: dict[str, Any] | None = None) -> None:
    """Write the config and trained weights into an existing folder."""
    (folder / WEIGHTS_FILE).write_bytes(save({k: v.contiguous().cpu() for k, v in stored_weights(encoder).items()}))
    if isinstance(encoder.backbone, StaticWords):
        (folder / WORDS).mkdir()
        encoder.backbone.save(folder / WORDS)
    write_manifest(folder, Kind.CHECKPOINT, describe(encoder) | {"facts": facts or {}})


def stored_weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint stores: those that inference needs beyond a frozen backbone."""
    projector = encoder.mlp if encoder.read_out.mlp == "always" else None
    extras = ("mlp.", "prompt.network.") if projector is None else ("prompt.network.",)
    stored = {name: weight.detach() for name, weight in encoder.trainable().items() if not name.startswith(extras)}
    if encoder.prompt is not None and encoder.prompt.network is not None:
        stored["prompt.table"] = encoder.prompt.values().detach()
    if projector is not None:
        stored |= {f"mlp.{name}": weight for name, weight in projector.state_dict().items()}
    if isinstance(encoder.backbone, StaticWords):
        stored |= {f"backbone.{name}": weight for name, weight in encoder.backbone.state_dict().items()}
    if encoder.post is not None:
        stored |= {f"post.{name}": weight for name, weight in encoder.post.state_dict().items()}
    return stored


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return what is needed to rebuild the encoder, as JSON values."""
    encoder.check_side()
    files, read_out, words = encoder.backbone.files, encoder.read_out, isinstance(encoder.backbone, StaticWords)
    template = encoder.templates[0] if encoder.templates else None
    return {
        "format": FORMAT,
        "backbone": {
            "name": files.name,
            "revision": files.revision,
            "sha256": files.sha256,
            "words": encoder.backbone.vocabulary if words else None,
            "width": encoder.backbone.hidden_size,
        },
        "prompt": None if encoder.prompt is None else encoder.prompt.config(),
        "cls": encoder.cls is not None,
        "template": template
        and {
            "text": template.text,
            "trained": encoder.template is not None,
            "end_with_period": template.end_with_period,
            "denoise": encoder.denoise == "always",
        },
        "pooler": {
            "kind": encoder.pooler,
            "mlp": read_out.mlp,
            "projector": read_out.projector,
            "first_layer": read_out.first_layer,
        },
        "side": encoder.side,
        "post": None if encoder.post is None else encoder.post.config(),
        "texts": encoder.texts,
        "widths": list(encoder.widths),
        "parameters": encoder.trained,
        "lora_rank": encoder.lora_rank,
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
    }


def find_recorded_backbone(folder: Path, config: Mapping[str, Any], elsewhere: str | None = None) -> BackboneFiles:
    """Find the backbone of a checkpoint with its recorded revision and weights, ``elsewhere`` if it moved since."""
    made_for = config["backbone"]
    try:
        files = find_backbone(elsewhere or made_for["name"], made_for["revision"])
    except CseError as error:
        hint = "" if elsewhere else f"; if it moved, load with backbone=FOLDER or edit backbone.name in {CONFIG_FILE}"
        raise type(error)(f"{folder}: {error}{hint}") from None
    if files.sha256 != made_for["sha256"]:
        raise CseError(
            f"{folder}: made for backbone {made_for['name']} (SHA-256 {made_for['sha256'][:12]}...), but {files.name} "
            f"has other weights ({files.sha256[:12]}...); give the backbone it was trained on"
        )
    return files


def load_weights(encoder: Encoder, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Copy stored weights, read from a path, into the encoder; names and shapes must match exactly."""
    wanted = stored_weights(encoder)
    missing, extra = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing:
        raise CseError(f"{path}: lacks {', '.join(missing[:3])}; a checkpoint without its prompts is the bare backbone")
    if extra:
        raise CseError(f"{path}: holds weights that its config does not name: {', '.join(extra[:3])}")
    for name, target in wanted.items():
        if weights[name].shape != target.shape:
            raise CseError(
                f"{path}: {name} has shape {tuple(weights[name].shape)}, but the backbone and config need "
                f"{tuple(target.shape)}"
            )
        if not torch.isfinite(weights[name]).all():
            raise CseError(f"{path}: {name} holds values that are not finite; train again with a lower learning rate")
        with torch.no_grad():
            target.copy_(weights[name])


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's stored tensors by name, after checking that every file is the one written."""
    path = folder / WEIGHTS_FILE
    check_files(folder, config["files"], CONFIG_FILE, AGAIN)
    with reading(f"{path}: truncated or not a safetensors file"):
        weights = load_file(path)
    with as_written(folder):
        _check_sizes(config, weights, folder)
    return weights


def _check_sizes(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Reject sizes that do not fit the weights, before allocating memory for them."""
    stored = sum(weight.numel() for weight in weights.values())
    sizes = {}
    if config["prompt"] is not None:  # each kind stores at least so many numbers; words may be narrower than layers
        width = 1 if config["prompt"]["kind"] == INPUT else max(config["backbone"]["width"], 1)
        sizes["prompt.length"] = config["prompt"]["length"] * width
    if config["backbone"]["words"] is not None:
        sizes["backbone.words"] = config["backbone"]["words"] * config["backbone"]["width"]
    if config["parameters"] == "lora":
        sizes["lora_rank"] = config["lora_rank"] * max(config["backbone"]["width"], 1)
    if (post := config["post"]) is not None:  # the map's matrix, or half of a flow's first layer
        sizes |= {f"post.{key}": value for key, value in post.items() if key != "kind"}
        sizes["post.width"] = -(-post["width"] * post.get("hidden", post["dimension"]) // 2)
    for key, value in sizes.items():
        if not 1 <= value <= stored:
            raise CseError(f"{folder / CONFIG_FILE}: {key} does not fit the {stored:,} stored numbers; {AGAIN}")


WEIGHTS_FILE = "weights.safetensors"
FORMAT = 5
WORDS = "words"  # folder with the tokenizer of static word vectors
AGAIN = "train or fetch the checkpoint again"
POST_KINDS = (*LINEAR_KINDS, "flow")


def identity_of(folder: Path) -> str:
    """Return the identity of a checkpoint, a hash of its weights and of how they are assembled; empty without one."""
    if not is_checkpoint(folder):
        return ""
    return digest({name: value for name, value in read_config(folder).items() if name != "facts"})


def recorded(folder: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint's training, see ``save_checkpoint``; none of another model."""
    return (read_config(folder)["facts"] or {}) if is_checkpoint(folder) else {}


def training_notes(folder: Path) -> str:
    """Return a caveat about a checkpoint's training to report with its results, or an empty string."""
    unigram = recorded(folder).get("generator") == UNIGRAM
    return "trained against a unigram generator, not a masked language model" if unigram else ""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a checkpoint, see ``describe``; ``facts`` are those of ``save_checkpoint``."""
    check_checkpoint(folder)
    return open_manifest(folder, Kind.CHECKPOINT, version=FORMAT, needed=[WEIGHTS_FILE], again=AGAIN)


def as_written(folder: Path) -> AbstractContextManager[None]:
    """Inside the block, refuse a config that ``describe`` never wrote: somebody has made its seal by hand."""
    what = f"{folder / CONFIG_FILE}: describes no model of this version"
    return reading(what, (AttributeError, LookupError, TypeError, ValueError))


def build_post(config: Mapping[str, Any]) -> LinearMap | Flow:
    """Build the module that a ``config()`` describes, without weights; load those with ``load_state_dict``."""
    kind = config.get("kind")
    if kind in LINEAR_KINDS:
        return LinearMap(kind, config["width"], config["dimension"]).eval()
    if kind == "flow":
        flow = Flow(config["width"], levels=config["levels"], depth=config["depth"], hidden=config["hidden"])
        return flow.requires_grad_(False).eval()
    raise CseError(f"post.kind: {kind!r} is not one of {', '.join(POST_KINDS)}{nearest(str(kind), POST_KINDS)}")


@dataclass(frozen=True)
class ParameterCounts:
    """Three counts that papers mix up, and that of the backbone, each a number of weights."""

    prompts: int  # of the prompt table, template vectors and `[CLS]` vector
    trained: int  # updated by the optimiser
    stored: int  # kept for inference by a checkpoint, beyond the backbone
    backbone: int


def count_parameters(encoder: Encoder) -> ParameterCounts:
    """Count prompts, trained weights, stored weights and the backbone's weights."""
    prompts = [encoder.template, encoder.cls, None if encoder.prompt is None else encoder.prompt.values()]
    updates = [part for part in encoder.backbone.modules() if isinstance(part, LowRank)]
    added = {weight for part in updates for weight in part.parameters()}
    return ParameterCounts(
        prompts=sum(values.numel() for values in prompts if values is not None),
        trained=sum(weight.numel() for weight in encoder.trainable().values()),
        stored=sum(weight.numel() for weight in stored_weights(encoder).values()),
        backbone=sum(weight.numel() for weight in encoder.backbone.parameters() if weight not in added),
    )
