"""What a checkpoint says of itself: ``checkpoint.json``, sealed, and checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from cse.choices import FirstLayer, PoolerKind, ProjectorKind, ProjectorUse, Side
from cse.errors import CseError
from cse.model.generator import UNIGRAM
from cse.model.named import CONFIG_FILE, check_checkpoint, is_checkpoint
from cse.model.post import POST_KINDS, POST_SIZES
from cse.model.prompts import PROMPT_KINDS
from cse.runtime.seal import SEAL, check_entries, check_seal, digest, read_object, sealed, short

WEIGHTS_FILE = "weights.safetensors"
FORMAT = 4
WORDS = "words"  # folder with the tokenizer of static word vectors
AGAIN = "train or fetch the checkpoint again"


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config of a checkpoint, sealed.

    The seal leaves out the backbone's name, which gives its location, so that a user may edit it after moving the
    folder. The hash identifies the backbone.
    """
    tree = {**config, SEAL: sealed(_without_place(config))[SEAL]}
    (folder / CONFIG_FILE).write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def identity_of(folder: Path) -> str:
    """Return the identity of a checkpoint: a hash of its weights and of how they are assembled."""
    config = read_config(folder)
    return digest({name: value for name, value in _without_place(config).items() if name != "facts"})


def _without_place(config: Mapping[str, Any]) -> dict[str, Any]:
    backbone = config["backbone"]
    if not isinstance(backbone, dict):
        return dict(config)
    return {**config, "backbone": {key: value for key, value in backbone.items() if key != "name"}}


def training_notes(folder: Path) -> str:
    """Return a caveat about a checkpoint's training to report with its results, or an empty string."""
    if not is_checkpoint(folder):
        return ""
    generator = (read_config(folder).get("facts") or {}).get("generator")
    if generator == UNIGRAM:
        return "trained against a unigram generator, not a masked language model"
    return ""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a checkpoint, see ``describe``; ``facts`` are those of ``save_checkpoint``."""
    path = folder / CONFIG_FILE
    check_checkpoint(folder)
    try:
        config = read_object(path, f"the checkpoint is incomplete, {AGAIN}")
    except OSError as error:
        raise CseError(f"{path}: unreadable ({error.strerror}); {AGAIN}") from None
    if type(config.get("format")) is not int or config["format"] != FORMAT:
        raise CseError(f"{path}: format {short(config.get('format'))}, this version reads {FORMAT}; {AGAIN}")
    check_seal(_without_place(config), path, AGAIN)
    check_entries(config.get("files"), path, [WEIGHTS_FILE], AGAIN)
    _check_config(config, path)
    return config


def _check_config(config: dict[str, Any], path: Path) -> None:
    """Reject a config that lacks a value or has one that ``describe`` never writes."""
    types: dict[str, type] = {"backbone.name": str, "backbone.revision": str, "backbone.sha256": str}
    types |= {"backbone.width": int, "dimension": int, "max_length": int, "lora_rank": int, "facts": dict}
    types |= {"texts": dict, "widths": list}
    choices: dict[str, tuple[Any, ...]] = {
        "pooler.kind": get_args(PoolerKind),
        "pooler.mlp": get_args(ProjectorUse),
        "pooler.projector": get_args(ProjectorKind),
        "pooler.first_layer": get_args(FirstLayer),
        "cls": (True, False),
        "side": get_args(Side),
        "parameters": ("prompts", "biases", "norms", "lora", "full"),
    }
    if config.get("prompt", ...) is not None:
        types |= {"prompt.length": int, "prompt.position_shift": bool, "prompt.shared": bool}
        choices["prompt.kind"] = PROMPT_KINDS
    if config.get("template", ...) is not None:
        types |= {f"template.{key}": bool for key in ("trained", "end_with_period", "denoise")} | {"template.text": str}
    if config.get("post", ...) is not None:
        choices["post.kind"] = POST_KINDS
        kind = config["post"].get("kind") if isinstance(config.get("post"), dict) else None
        types |= {f"post.{key}": int for one, keys in POST_SIZES.items() if one == kind for key in keys}
    if isinstance(config.get("backbone"), dict) and config["backbone"].get("words", ...) is not None:
        types |= {"backbone.words": int}
    for key in (*types, *choices):
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        allowed = any(type(value) is type(one) and value == one for one in choices.get(key, ()))
        if not allowed and type(value) is not types.get(key):
            said = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
            raise CseError(f"{path}: {key} is {said}, which is not valid in this version; fetch the checkpoint again")
