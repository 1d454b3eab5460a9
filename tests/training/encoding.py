"""A batch staged and encoded as the loop does it, in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cse.model.passes import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import Batch, encode_staged, stage_batch
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
    **options: Any,
) -> Batch:
    """Encode all views of a batch; the options are those of ``stage_batch``."""
    settings = TrainSettings(**cut._asdict())
    staged = stage_batch(
        encoder, table, rows, settings=settings, augment=augment, device=device, bf16=bf16, **options
    )  # fmt: skip
    tensors, twice = on_device(staged.arrays, device), cut.mini_batch_size is not None
    return encode_staged(encoder, staged, tensors, augment=augment, bf16=bf16, twice=twice)
