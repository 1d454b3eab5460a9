"""What a checkpoint says of itself: ``checkpoint.json``, sealed, and checked when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from cse.choices import FirstLayer, PoolerKind, ProjectorKind, ProjectorUse
from cse.errors import CseError
from cse.model.generator import UNIGRAM
from cse.model.post import POST_KINDS, POST_SIZES
from cse.model.prompts import PROMPT_KINDS
from cse.runtime.seal import SEAL, check_entries, check_seal, describe_files, digest, read_object, sealed

CONFIG_FILE = "checkpoint.json"
WEIGHTS_FILE = "weights.safetensors"
FORMAT = 3
UNSEALED = (1, 2)  # formats before checkpoints had hashes and a seal
WORDS = "words"  # folder with the tokenizer of static word vectors
AGAIN = "train or fetch the checkpoint again"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder claims to be a checkpoint of this project."""
    return (folder / CONFIG_FILE).is_file()


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the config of a checkpoint, sealed.

    The seal leaves out the backbone's name, which gives its location, so that a user may edit it after moving the
    folder. The hash identifies the backbone.
    """
    tree = {**config, SEAL: sealed(_without_place(config))[SEAL]}
    (folder / CONFIG_FILE).write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def identity_of(folder: Path) -> str:
    """Return the identity of a checkpoint: a hash of its weights and of how they are assembled.

    Raises:
        CseError: the checkpoint is missing or unreadable.
    """
    config = read_config(folder)
    if not config["files"]:
        config["files"] = describe_files(folder, [WEIGHTS_FILE])
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
    """Read the config of a checkpoint, see ``describe``; ``facts`` are those of ``save_checkpoint``.

    ``files`` holds the hashes of its files; it is empty for checkpoints written before hashes were added.

    Raises:
        CseError: the checkpoint is missing, truncated, changed, or of another format.
    """
    path = folder / CONFIG_FILE
    try:
        config = read_object(path, f"the checkpoint is incomplete, {AGAIN}")
    except FileNotFoundError:
        raise CseError(f"{folder}: no checkpoint here ({CONFIG_FILE} is missing); `cse train` writes one") from None
    except OSError as error:
        raise CseError(f"{path}: unreadable ({error.strerror}); {AGAIN}") from None
    if type(config.get("format")) is not int or config["format"] not in (*UNSEALED, FORMAT):
        raise CseError(f"{path}: not a checkpoint of format {FORMAT}; it was written by another version of cse")
    if config["format"] == FORMAT:
        check_seal(_without_place(config), path, AGAIN, needed=True)
        check_entries(config.get("files"), path, [WEIGHTS_FILE], AGAIN)
    else:
        config["files"] = {}
    if config["format"] == 1:
        config = _from_format_1(config)
    config = {"texts": {}, "widths": [], "lora_rank": 0} | config  # not written before models had them
    _check_config(config, path)
    return config


def _from_format_1(config: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that format 1 did not have; anything else that is missing is rejected later."""
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
