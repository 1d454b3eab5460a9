"""A batch staged and encoded as the loop does it, in one call."""

from __future__ import annotations

import numpy as np
import torch

from cse.losses.group import ALONE, Group
from cse.losses.shared import Batch
from cse.model.passes import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import Batcher
from cse.training.tokens import TokenTable
from tests.parts import PLAIN, Cut


def encode_batch(
    encoder: SentenceEncoder,
    table: TokenTable,
    rows: np.ndarray,
    *,
    cut: Cut,
    augment: AugmentSettings = PLAIN,
    device: torch.device,
    bf16: bool,
    group: Group = ALONE,
    **place: int,
) -> Batch:
    """Encode all views of a batch, with its place in the run: step and epoch."""
    settings = TrainSettings(**cut._asdict())
    batcher = Batcher(encoder=encoder, settings=settings, augment=augment, device=device, bf16=bf16, group=group)
    staged = batcher.stage(table, rows, **place)
    return batcher.encode(staged, on_device(staged.arrays, device))
