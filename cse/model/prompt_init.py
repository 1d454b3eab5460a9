"""Where a prompt starts from: what the backbone makes of a text, or another checkpoint's prompt."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cse.errors import CseError
from cse.model.backbone import Backbone, plain_copy
from cse.model.prompts import INPUT, Prompt


@torch.no_grad()
def start_from_text(prompt: Prompt, backbone: Backbone, text: str) -> None:
    """Set a prompt to the states, keys and values that a text has inside the backbone.

    A ``key_value`` prompt takes each layer's keys and values of the text's tokens, a ``hidden_state`` prompt the inputs
    of each layer, an ``input`` prompt the word vectors; a shared prompt takes the mean over layers. Short texts are
    repeated, long ones cut.

    Raises:
        CseError: a text without tokens, or a prompt that is trained through a network.
    """
    if prompt.table is None:
        raise CseError("prompt.init: a prompt with prompt.reparametrize starts at random; set one of the two back")
    ids = plain_copy(backbone.tokenizer).encode(text, add_special_tokens=False).ids
    if not ids:
        raise CseError("prompt.init_text: the text has no tokens; write some words")
    ids_1P = torch.tensor([(ids * (prompt.length // len(ids) + 1))[: prompt.length]])
    words_1PD = backbone.words(ids_1P)
    if prompt.kind == INPUT:
        prompt.table.copy_(words_1PD[0])
        return
    was_training = backbone.model.training
    backbone.model.eval()
    mask_1P = torch.ones_like(ids_1P)
    states = backbone.run(backbone.embed(words_1PD, backbone.positions(mask_1P, 0)), mask_1P, None)[:-1]
    backbone.model.train(was_training)
    if prompt.kind == "hidden_state":
        table = torch.cat(states)  # (layers, P, D)
        prompt.table.copy_(table.mean(dim=0, keepdim=True) if prompt.shared else table)
        return
    blocks = [(block.attention.self, state[0]) for block, state in zip(backbone.blocks, states, strict=True)]
    pairs = torch.stack([torch.stack([layer.key(x), layer.value(x)]) for layer, x in blocks])  # (layers, 2, P, D)
    if prompt.shared:
        pairs = pairs.mean(dim=0, keepdim=True)
    prompt.table.copy_(pairs.permute(2, 0, 1, 3).reshape(prompt.table.shape))


def start_from_checkpoint(prompt: Prompt, folder: Path) -> None:
    """Set a prompt to that of a checkpoint, for instance one trained by masked language modelling.

    Raises:
        CseError: no readable weights there, no prompt in them, or a prompt of another shape.
    """
    key = "prompt.init_checkpoint"
    if prompt.table is None:
        raise CseError("prompt.init: a prompt with prompt.reparametrize starts at random; set one of the two back")
    try:
        weights = load_file(folder / "weights.safetensors")
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise CseError(f"{key}: cannot read a checkpoint in {folder}: {reason}; train one there first") from None
    if "prompt.table" not in weights:
        raise CseError(f"{key}: the checkpoint in {folder} holds no prompt")
    if weights["prompt.table"].shape != prompt.table.shape:
        raise CseError(
            f"{key}: the prompt in {folder} has shape {tuple(weights['prompt.table'].shape)}, this one "
            f"{tuple(prompt.table.shape)}; use the same backbone, prompt.kind, prompt.length and prompt.layers"
        )
    with torch.no_grad():
        prompt.table.copy_(weights["prompt.table"])
