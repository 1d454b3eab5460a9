"""A bank of three domains whose vectors differ, and what may happen to one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from cse.export.as_domain import make_domain
from cse.export.domains import add_domain
from cse.model.sentence_encoder import SentenceEncoder
from tests.export.banks import make_encoder

KINDS = {"billing": "hidden", "outage": "own-cls", "plain": "bare"}  # see tests.export.banks
TYPICAL = {"billing": ["the cat", "a mat"], "outage": ["red bird", "old river"]}  # what `auto` knows them by


def write_bank(folder: Path, empty: Path, backbone: Path) -> Path:
    """Copy an empty bank of the backbone and add the domains above; all but ``plain`` can be chosen by text."""
    shutil.copytree(empty, folder)
    for seed, name in enumerate(KINDS):
        put_domain(folder, backbone, name, seed)
    return folder


def put_domain(bank: Path, backbone: Path, name: str, seed: int) -> None:
    """Add or replace a domain; its prompts depend on the seed."""
    encoder = make_encoder(backbone, KINDS.get(name, "plain"), seed)
    centres = SentenceEncoder(encoder.backbone).encode(TYPICAL[name]) if name in TYPICAL else None
    add_domain(bank, make_domain(encoder, name, centres=centres), replace=True)
