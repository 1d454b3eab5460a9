"""A tiny bundle that needs no training."""

from __future__ import annotations

from pathlib import Path

from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Manifest, describe_files
from tests.runtime.conftest import DIMENSION, MAX_LENGTH, PAD, make_tokenizer, write_model

LINES = ["the cat sat", "", "a dog on mat", "the cat sat"]


def write_bundle(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_model(folder / MODEL)
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=128)  # as all-MiniLM-L6-v2's does; nothing of it may reach the model
    tokenizer.enable_truncation(128)
    tokenizer.save(str(folder / TOKENIZER))
    Manifest(FORMAT, DIMENSION, "mean", True, MAX_LENGTH, PAD, describe_files(folder, [MODEL, TOKENIZER])).write(folder)
    return folder
