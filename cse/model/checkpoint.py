"""A checkpoint: the trained weights and how to load them, without the backbone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from cse.errors import CseError
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint_config import AGAIN, FORMAT, WEIGHTS_FILE, WORDS, write_config
from cse.model.encoder import Encoder
from cse.model.named import CONFIG_FILE
from cse.model.side import check_side
from cse.model.static_words import StaticWords
from cse.runtime.seal import check_files, describe_files


def save_checkpoint(encoder: Encoder, folder: Path, facts: dict[str, Any] | None = None) -> None:
    """Write the config and trained weights into an existing folder.

    Args:
        folder: an empty folder; the caller publishes it atomically.
        facts: further information to store (dev score, steps, ...), as JSON values.
    """
    (folder / WEIGHTS_FILE).write_bytes(save({k: v.contiguous().cpu() for k, v in stored_weights(encoder).items()}))
    names = [WEIGHTS_FILE]
    if isinstance(encoder.backbone, StaticWords):
        (folder / WORDS).mkdir()
        encoder.backbone.save(folder / WORDS)
        names += sorted(path.relative_to(folder).as_posix() for path in (folder / WORDS).iterdir())
    config = describe(encoder) | {"facts": facts or {}, "files": describe_files(folder, names)}
    write_config(folder, config)


def stored_weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint stores: those that inference needs beyond a frozen backbone."""
    extras = ("prompt.network.",) if encoder.mlp_use == "always" else ("mlp.", "prompt.network.")
    stored = {name: weight.detach() for name, weight in encoder.trainable().items() if not name.startswith(extras)}
    if encoder.prompt is not None and encoder.prompt.network is not None:
        stored["prompt.table"] = encoder.prompt.values().detach()
    if encoder.mlp is not None and encoder.mlp_use == "always":
        stored |= {f"mlp.{name}": weight for name, weight in encoder.mlp.state_dict().items()}
    if isinstance(encoder.backbone, StaticWords):
        stored |= {f"backbone.{name}": weight for name, weight in encoder.backbone.state_dict().items()}
    if encoder.post is not None:
        stored |= {f"post.{name}": weight for name, weight in encoder.post.state_dict().items()}
    return stored


def describe(encoder: Encoder) -> dict[str, Any]:
    """Return what is needed to rebuild the encoder, as JSON values."""
    check_side(encoder)
    prompt, files = encoder.prompt, encoder.backbone.files
    return {
        "format": FORMAT,
        "backbone": {
            "name": files.name,
            "revision": files.revision,
            "sha256": files.sha256,
            "words": encoder.backbone.vocabulary if isinstance(encoder.backbone, StaticWords) else None,
            "width": encoder.backbone.hidden_size,
        },
        "prompt": None
        if prompt is None
        else {
            "kind": prompt.kind,
            "length": prompt.length,
            "shared": prompt.shared,
            "position_shift": encoder.position_shift,
        },
        "cls": encoder.cls is not None,
        "template": None
        if not encoder.templates
        else {
            "text": encoder.templates[0].text,
            "trained": encoder.template is not None,
            "end_with_period": encoder.templates[0].end_with_period,
            "denoise": encoder.denoise == "always",
        },
        "pooler": {
            "kind": encoder.pooler,
            "mlp": encoder.mlp_use,
            "projector": encoder.projector,
            "first_layer": encoder.first_layer,
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
    """Find the backbone of a checkpoint, with its recorded revision and weights.

    Args:
        config: from ``read_config``.
        elsewhere: where the backbone is now, if it moved since training.
    """
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
    """Return a checkpoint's stored tensors by name, after checking that every file is the one written.

    Args:
        config: from ``read_config``.
    """
    path = folder / WEIGHTS_FILE
    check_files(folder, config["files"], CONFIG_FILE, AGAIN)
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CseError(f"{path}: truncated or not a safetensors file ({reason}); {AGAIN}") from None
    _check_sizes(config, weights, folder)
    return weights


def _check_sizes(config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Reject sizes that do not fit the weights, before allocating memory for them."""
    stored = sum(weight.numel() for weight in weights.values())
    sizes = {}
    if config["prompt"] is not None:  # every kind stores at least one vector of the backbone's width
        sizes["prompt.length"] = config["prompt"]["length"] * max(config["backbone"]["width"], 1)
    if config["backbone"]["words"] is not None:
        sizes["backbone.words"] = config["backbone"]["words"] * config["backbone"]["width"]
    if config["parameters"] == "lora":
        sizes["lora_rank"] = config["lora_rank"] * max(config["backbone"]["width"], 1)
    if config["post"] is not None:
        sizes |= {f"post.{key}": value for key, value in config["post"].items() if key != "kind"}
    for key, value in sizes.items():
        if not 1 <= value <= stored:
            raise CseError(f"{folder / CONFIG_FILE}: {key} does not fit the {stored:,} stored numbers; {AGAIN}")
