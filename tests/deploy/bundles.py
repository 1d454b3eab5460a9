"""A tiny bundle that needs no training."""

from __future__ import annotations

from pathlib import Path

from tests.runtime import conftest

LINES = ["the cat sat", "", "a dog on mat", "the cat sat"]


def write_bundle(folder: Path) -> Path:
    tokenizer = conftest.make_tokenizer()
    tokenizer.enable_padding(length=128)  # as all-MiniLM-L6-v2's does; nothing of it may reach the model
    tokenizer.enable_truncation(128)
    return conftest.write_bundle(folder, tokenizer)
