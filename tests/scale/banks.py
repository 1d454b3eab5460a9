"""A tiny bank of prompts, and what may happen to it."""

from __future__ import annotations

from pathlib import Path

import torch

from cse.export.bank import add_domain, create_bank, make_domain
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.domain import Domain
from tests.parts import new_prompt, sentence_encoder

# length of the prompt, pooler and whether positions shift: the domains differ in every input of the graph
DOMAINS = {"billing": (5, "mean", False), "outage": (3, "cls", True), "plain": (0, "mean", False)}
TYPICAL = {"billing": ["the cat", "a mat"], "outage": ["red bird", "old river"]}  # what `auto` knows them by


def write_bank(folder: Path, backbone: Path) -> Path:
    """Write a bank of the domains above; all but ``plain`` can be chosen by text."""
    create_bank(SentenceEncoder.bare(load_backbone(find_backbone(str(backbone)))), folder, tolerance=1e-4)
    for seed, name in enumerate(DOMAINS):
        put_domain(folder, backbone, name, seed=seed)
    return folder


def put_domain(bank: Path, backbone: Path, name: str, *, seed: int) -> Domain:
    """Add or replace a domain; its prompts depend on the seed."""
    length, pooler, shift = DOMAINS.get(name, DOMAINS["billing"])
    torch.manual_seed(seed)
    loaded = load_backbone(find_backbone(str(backbone)))
    prompt = new_prompt("key_value", loaded, length=length, dropout=0.0, init_std=0.7) if length else None
    encoder = sentence_encoder(loaded, prompt, pooler=pooler, position_shift=shift).eval()
    centres = SentenceEncoder.bare(loaded).encode(TYPICAL[name]) if name in TYPICAL else None
    domain = make_domain(encoder, name, centres=centres)
    add_domain(bank, domain, replace=True)
    return domain
