"""A small training problem on a tiny backbone."""

from __future__ import annotations

import numpy as np
import torch
from datasets import Dataset

from cse.model.encoder import SentenceEncoder
from cse.model.prompts import Prompt
from cse.objectives.combine import build_objective
from cse.training.batch import Batch, encode_batch
from cse.training.losses import Losses
from cse.training.tokens import TokenTable, tokenise
from tests.conftest import WORDS


def make_rows(count: int = 40, seed: int = 0) -> Dataset:
    """Triplets of random words; the positive repeats most of the anchor."""
    rng = np.random.default_rng(seed)

    def text(length: int) -> list[str]:
        return list(rng.choice(WORDS, length))

    rows = []
    for _ in range(count):
        anchor = text(int(rng.integers(2, 9)))
        negative = text(int(rng.integers(1, 5)))
        rows.append({"sent0": " ".join(anchor), "sent1": " ".join(anchor[:-1]), "hard_neg": " ".join(negative)})
    return Dataset.from_list(rows)


def make_problem(backbone, *, dropout: float = 0.1, mlp: str = "none", frozen: bool = True, rows: int = 40):
    """Return encoder, losses and tokenised rows, the same each time."""
    torch.manual_seed(11)
    prompt = Prompt("key_value", backbone, length=4, dropout=dropout, init_std=0.02) if frozen else None
    encoder = SentenceEncoder(backbone, prompt, pooler="mean", mlp=mlp, frozen=frozen)
    return encoder, Losses(build_objective(hinge_weight=10.0)), make_table(backbone, rows)


def make_table(backbone, rows: int = 40, view: str = "triplets") -> TokenTable:
    return tokenise(make_rows(rows), view, [backbone.tokenizer], max_length=12, pad_id=backbone.pad_id)


def embed_rows(encoder, table: TokenTable, rows, plan) -> Batch:
    """Encode rows as the loop does at its first step."""
    return encode_batch(
        encoder,
        table,
        np.asarray(rows),
        cut=plan.cut,
        augmentation=plan.augmentation,
        rng=np.random.default_rng(0),
        step=0,
        epoch=0,
        device=torch.device("cpu"),
        bf16=plan.bf16,
    )


class Recorder:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.starts, self.records, self.scores, self.closed = [], [], [], 0

    def start(self, done, steps):
        self.starts.append((done, steps))

    def step(self, record):
        self.records.append(record)

    def evaluated(self, step, score, best):
        self.scores.append((step, score, best))

    def close(self):
        self.closed += 1
