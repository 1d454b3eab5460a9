"""Initialise a prompt from a text's activations in the backbone or from another checkpoint's prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cse.errors import CseError, in_terms_of
from cse.model.backbone import Backbone, plain_copy
from cse.model.checkpoint import read_config, read_weights
from cse.model.prompts import INPUT, Prompt

_KEY = "prompt.init_checkpoint"
TEXT = "This sentence can be summarised in one word that carries its whole meaning:"
_AT_RANDOM = "prompt.init: a prompt that trains through a network starts at random"


@torch.no_grad()
def start_from_text(prompt: Prompt, backbone: Backbone, text: str = TEXT) -> None:
    """Initialise a prompt with the activations of a text in the backbone.

    A ``key_value`` prompt gets each layer's keys and values of the text's tokens, a ``hidden_state`` prompt the inputs
    of each layer, an ``input`` prompt the word vectors; a shared prompt gets the mean over layers. Short texts are
    repeated, long ones cut.
    """
    if prompt.table is None:
        raise CseError(_AT_RANDOM)
    ids = plain_copy(backbone.tokenizer).encode(text, add_special_tokens=False).ids
    ids_1P = torch.tensor([(ids * (prompt.length // len(ids) + 1))[: prompt.length]])
    words_1PD = backbone.words(ids_1P)
    if prompt.kind == INPUT:
        prompt.table.copy_(words_1PD[0])
        return
    was_training = backbone.model.training
    backbone.model.eval()
    mask_1P = torch.ones_like(ids_1P)
    positions_1P = backbone.positions(mask_1P, 0)
    states = backbone.run(backbone.embed(words_1PD, positions_1P), positions_1P, mask_1P, None)[:-1]
    backbone.model.train(was_training)
    if prompt.kind == "hidden_state":
        table = torch.cat(states)  # (layers, P, D)
        prompt.table.copy_(table.mean(dim=0, keepdim=True) if prompt.shared else table)
        return
    if prompt.kind != "key_value":
        raise CseError(f"prompt.init: a prompt of kind {prompt.kind} cannot start from a text; set prompt.init: random")
    blocks = backbone.keys_and_values(torch.cat(states))
    pairs = torch.stack([torch.stack(pair) for pair in blocks])  # (layers, 2, H, P, K)
    if prompt.shared:
        pairs = pairs.mean(dim=0, keepdim=True)
    prompt.table.copy_(pairs.permute(3, 0, 1, 2, 4).reshape(prompt.table.shape))


def start_from_checkpoint(prompt: Prompt, backbone: Backbone, folder: Path) -> None:
    """Initialise a prompt from a checkpoint's, for instance one trained by masked language modelling."""
    if prompt.table is None:
        raise CseError(_AT_RANDOM)
    with in_terms_of(f"{_KEY}: "):
        config = read_config(folder)
        _check_start(config, prompt, backbone, folder)
        weights = read_weights(folder, config)
    if "prompt.table" not in weights:
        raise CseError(f"{_KEY}: the checkpoint in {folder} holds no prompt")
    if weights["prompt.table"].shape != prompt.table.shape:
        raise CseError(
            f"{_KEY}: the prompt in {folder} has shape {tuple(weights['prompt.table'].shape)}, but this one has "
            f"{tuple(prompt.table.shape)}; use the same prompt.kind, prompt.length and prompt.layers"
        )
    with torch.no_grad():
        prompt.table.copy_(weights["prompt.table"])


def _check_start(config: dict[str, Any], prompt: Prompt, backbone: Backbone, folder: Path) -> None:
    made_for, other = config["backbone"], config["prompt"]
    if other is None:
        raise CseError(f"the checkpoint in {folder} holds no prompt")
    if config["parameters"] != "prompts":
        raise CseError(
            f"the prompt in {folder} was trained with weights of its backbone; use one trained on a frozen backbone"
        )
    if made_for["sha256"] != backbone.files.sha256:
        raise CseError(
            f"the prompt in {folder} was trained on {made_for['name']} (SHA-256 {made_for['sha256'][:12]}...), but the "
            f"backbone is {backbone.files.name} ({backbone.files.sha256[:12]}...); use the backbone it was trained on"
        )
    if other["kind"] != prompt.kind or other["shared"] != prompt.shared:
        layers, own_layers = ("shared" if shared else "separate" for shared in (other["shared"], prompt.shared))
        raise CseError(
            f"the prompt in {folder} is {other['kind']}, {layers}, but this one is {prompt.kind}, {own_layers}; use "
            "the same prompt.kind and prompt.layers"
        )
