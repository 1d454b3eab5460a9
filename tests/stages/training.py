"""Stage ``train`` in a folder of the test's own, and checkpoints that nobody trained."""

import shutil
from pathlib import Path
from typing import Any

import torch

from cse.model.checkpoint import save_checkpoint
from cse.settings import Settings
from cse.stages.train import train_stage
from tests.parts import backbone_of, new_prompt, new_template, sentence_encoder


def train_in(folder: Path, settings: Settings, prepared: Path, **others: Any) -> dict[str, Any]:
    """Train; what is read and written lies in ``folder``, but for ``prepared`` and what is named."""
    outputs = {name: folder / name for name in ("checkpoint", "plots", "scratch")}
    return train_stage(settings, **({"prepared": prepared, "metrics": folder / "train.json"} | outputs | others))


def write_checkpoint(folder: Path, backbone: Path, init_std: float = 0.5, *, length: int = 5, **options: Any) -> Path:
    """A checkpoint with a prompt of its own, in place of what is there."""
    torch.manual_seed(3)
    loaded = backbone_of(backbone)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prompt = new_prompt("key_value", loaded, length=length, init_std=init_std)
    templates = [new_template('the "{sentence}" not {mask} .', loaded)] if options.get("pooler") == "mask" else ()
    save_checkpoint(sentence_encoder(loaded, prompt, templates=templates, **options), folder)
    return folder
