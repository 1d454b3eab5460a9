"""A checkpoint: what was trained and how to put it back, without the backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from cse.errors import CseError
from cse.model.backbone import Backbone, BackboneFiles, find_backbone, load_backbone
from cse.model.encoder import SentenceEncoder
from cse.model.generator import UNIGRAM
from cse.model.pooling import POOLERS, PROJECTORS
from cse.model.post import build_post
from cse.model.prompts import PROMPT_KINDS, Prompt
from cse.model.static_words import StaticWords
from cse.model.template import make_template

CONFIG_FILE = "checkpoint.json"
WEIGHTS_FILE = "weights.safetensors"
FORMAT = 2
WORDS = "words"  # folder with the tokenizer of static word vectors


def is_checkpoint(folder: Path) -> bool:
    """Say whether a folder claims to be a checkpoint of this project."""
    return (folder / CONFIG_FILE).is_file()


def save_checkpoint(encoder: SentenceEncoder, folder: Path, facts: dict[str, Any] | None = None) -> None:
    """Write config and trained weights into an existing folder.

    Args:
        encoder: the trained encoder.
        folder: an empty folder; publishing it whole is the caller's business.
        facts: what else should travel with it (dev score, steps, ...), JSON values.
    """
    (folder / WEIGHTS_FILE).write_bytes(save({k: v.contiguous().cpu() for k, v in encoder.stored_weights().items()}))
    if isinstance(encoder.backbone, StaticWords):
        (folder / WORDS).mkdir()
        encoder.backbone.save(folder / WORDS)
    config = describe(encoder) | {"facts": facts or {}}
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def training_notes(folder: Path) -> str:
    """Return what a reader of a checkpoint's results must know of its training, or an empty text."""
    if not is_checkpoint(folder):
        return ""
    generator = (read_config(folder).get("facts") or {}).get("generator")
    if generator == UNIGRAM:
        return "trained against a unigram generator, not a masked language model"
    return ""


def describe(encoder: SentenceEncoder) -> dict[str, Any]:
    """Return what is needed to build the encoder again, as JSON values."""
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
        "post": None if encoder.post is None else encoder.post.config(),
        "parameters": "prompts" if encoder.frozen else "full",
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
    }


def load_checkpoint(folder: Path, *, backbone: str | None = None) -> SentenceEncoder:
    """Build the encoder that a checkpoint describes and fill in its weights.

    Raises:
        CseError: unreadable or truncated files, another backbone than the one trained on, missing or left-over or
            wrongly shaped weights. Nothing is ever dropped or left at its random start in silence.
    """
    config = read_config(folder)
    made_for = config["backbone"]
    if made_for["words"] is not None:
        files = BackboneFiles(made_for["name"], made_for["revision"], folder, made_for["sha256"])
        words = StaticWords.empty(folder / WORDS, made_for["words"], made_for["width"], files)
        encoder = rebuild(words, config)
        load_weights(encoder, folder / WEIGHTS_FILE)
        return encoder
    try:
        files = find_backbone(backbone or made_for["name"], made_for["revision"])
    except CseError as error:
        hint = "" if backbone else f"; if it moved, load with backbone=FOLDER or mend backbone.name in {CONFIG_FILE}"
        raise type(error)(f"{folder}: {error}{hint}") from None
    if files.sha256 != made_for["sha256"]:
        raise CseError(
            f"{folder}: made for backbone {made_for['name']} (SHA-256 {made_for['sha256'][:12]}...), but {files.name} "
            f"has other weights ({files.sha256[:12]}...); give the backbone that it was trained on"
        )
    encoder = rebuild(load_backbone(files, config["pooler"]["kind"]), config)
    load_weights(encoder, folder / WEIGHTS_FILE)
    return encoder


def rebuild(backbone: Backbone | StaticWords, config: dict[str, Any]) -> SentenceEncoder:
    """Build an encoder from what ``describe`` returned; its trained weights still have starting values."""
    prompt, pooler, template = config["prompt"], config["pooler"], config["template"]
    kept: Prompt | None = None
    if prompt is not None and isinstance(backbone, Backbone):
        kept = Prompt(
            prompt["kind"], backbone, length=prompt["length"], dropout=0.0, init_std=0.0, shared=prompt["shared"]
        )
    templates = []
    if template is not None and isinstance(backbone, Backbone):
        options = {name: template[name] for name in ("trained", "end_with_period")}
        templates = [make_template(template["text"], backbone, **options)]
    encoder = SentenceEncoder(
        backbone,
        kept,
        pooler=pooler["kind"],
        # a layer that only the loss used is neither stored nor built again
        mlp=pooler["mlp"] if pooler["mlp"] == "always" else "none",
        projector=pooler["projector"],
        first_layer=pooler["first_layer"],
        position_shift=True if prompt is None else prompt["position_shift"],
        cls=config["cls"],
        templates=templates,
        denoise="always" if template is not None and template["denoise"] else "none",
        frozen=config["parameters"] == "prompts",
    )
    if config["post"] is not None:
        encoder.post = build_post(config["post"]).eval()
    return encoder


def load_weights(encoder: SentenceEncoder, path: Path) -> None:
    """Copy stored weights into the encoder; every tensor must be there, be known and fit.

    Raises:
        CseError: truncated file, missing, left-over or wrongly shaped tensors, or values that are not numbers.
    """
    weights = read_weights(path)
    wanted = encoder.stored_weights()
    missing, extra = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing:
        raise CseError(f"{path}: lacks {', '.join(missing[:3])}; a checkpoint without its prompts is the bare backbone")
    if extra:
        raise CseError(f"{path}: holds weights that its config does not name: {', '.join(extra[:3])}")
    for name, target in wanted.items():
        if weights[name].shape != target.shape:
            raise CseError(
                f"{path}: {name} has shape {tuple(weights[name].shape)}, the backbone and config need "
                f"{tuple(target.shape)}"
            )
        if not torch.isfinite(weights[name]).all():
            raise CseError(f"{path}: {name} holds values that are not finite; train again with a lower learning rate")
        with torch.no_grad():
            target.copy_(weights[name])


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the stored tensors by name.

    Raises:
        CseError: no such file, or a truncated one.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CseError(f"{path}: missing; the checkpoint is incomplete, train or fetch it again") from None
    except (SafetensorError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CseError(f"{path}: truncated or not a safetensors file ({reason}); train or fetch it again") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read what a checkpoint says of itself, see ``describe``; ``facts`` are those of ``save_checkpoint``.

    Raises:
        CseError: no checkpoint there, one that was cut off, or of another format.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CseError(f"{folder}: no checkpoint here ({CONFIG_FILE} is missing); `cse train` writes one") from None
    except (OSError, ValueError) as error:
        raise CseError(f"{path}: unreadable ({error}); the checkpoint is incomplete, train or fetch it again") from None
    if not isinstance(config, dict) or config.get("format") not in (1, FORMAT):
        raise CseError(f"{path}: not a checkpoint of format {FORMAT}; it was written by another version of cse")
    if config["format"] == 1:
        config = _from_format_1(config)
    _check_config(config, path)
    return config


def _from_format_1(config: dict[str, Any]) -> dict[str, Any]:
    """Add what checkpoints of format 1 could not have; what they lack stays missing and is refused."""
    later: dict[str, dict[str, Any]] = {
        "backbone": {"words": None, "width": 0},
        "prompt": {"shared": False},
        "pooler": {"projector": "tanh"},
    }
    upgraded = {"cls": False, "template": None, "post": None} | config
    for name, values in later.items():
        if isinstance(upgraded.get(name), dict):
            upgraded[name] = values | upgraded[name]
    return upgraded


def _check_config(config: dict[str, Any], path: Path) -> None:
    """Refuse a config that lacks a value, or has one that ``describe`` never writes."""
    types: dict[str, type] = {"backbone.name": str, "backbone.revision": str, "backbone.sha256": str}
    choices = {
        "pooler.kind": POOLERS,
        "pooler.mlp": ("none", "train_only", "always"),
        "pooler.projector": PROJECTORS,
        "pooler.first_layer": ("embeddings", "block1"),
        "cls": (True, False),
        "parameters": ("prompts", "full"),
    }
    if config.get("prompt", ...) is not None:
        types |= {"prompt.length": int, "prompt.position_shift": bool, "prompt.shared": bool}
        choices["prompt.kind"] = PROMPT_KINDS
    if config.get("template", ...) is not None:
        types |= {f"template.{key}": bool for key in ("trained", "end_with_period", "denoise")} | {"template.text": str}
    if config.get("post", ...) is not None:
        types |= {"post.kind": str}
    if isinstance(config.get("backbone"), dict) and config["backbone"].get("words", ...) is not None:
        types |= {"backbone.words": int, "backbone.width": int}
    for key in (*types, *choices):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value not in choices[key] if key in choices else type(value) is not types[key]:
            raise CseError(f"{path}: {key} is {value!r}, which no checkpoint of this version has; fetch it again")
