"""The default system for the training benchmarks: prompts, NT-Xent and the hinge, without evaluation."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from cse.data.store import view_of
from cse.errors import CseError
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.named import MINILM
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import Settings, check_settings
from cse.stages.build.encoder import encoder_from
from cse.stages.build.losses import Parts, losses_from
from cse.stages.build.plan import plan_from
from cse.training.group import ALONE, Group
from cse.training.loop import train
from cse.training.observers import Observer, StepRecord
from cse.training.precision import choose_bf16
from cse.training.state import RunFolder
from cse.training.tokens import tokenise

NEVER = 1e9  # seconds; no state is saved


class Stopwatch(Observer):
    """An observer that records the time of each report, to exclude set-up and the first steps."""

    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def step(self, record: StepRecord) -> None:
        """Record the time of a step."""
        self.times.append((record.step, time.perf_counter()))

    def seconds_per_step(self) -> float:
        """Return the mean over the steps after the first report.

        Raises:
            CseError: there was only one.
        """
        if len(self.times) < 2:
            raise CseError("benchmark: too few steps for two reports of the training; give more rows")
        (first, begin), (last, end) = self.times[0], self.times[-1]
        return (end - begin) / (last - first)


def default_encoder(settings: Settings, backbone: Path | str = MINILM) -> SentenceEncoder:
    """Return a backbone with new prompts."""
    groups = (settings.prompt, settings.template, settings.pooler, settings.augment, settings.train)
    return encoder_from(load_backbone(find_backbone(str(backbone))), *groups)


def seconds_per_step(
    rows: pa.Table, device: torch.device, group: Group = ALONE, *, backbone: Path | str = MINILM, **changes: Any
) -> float:
    """Train on rows and return seconds per step; ``changes`` are settings of ``train``."""
    view = view_of(rows)
    tree: dict[str, Any] = {"data": {"view": view}, "train": {"save_seconds": NEVER, **changes}}
    if view != "triplets":
        tree["objective"] = {"energy_hinge": {"weight": 0.0}}  # it needs hard negatives
    settings = check_settings(tree, where="benchmark")
    encoder = default_encoder(settings, backbone)
    model, watch = encoder.backbone, Stopwatch()
    table = tokenise(rows, view, [model.tokenizer], max_length=settings.train.max_length, pad_id=model.pad_id)
    bf16 = choose_bf16(settings.train.precision, device)
    with tempfile.TemporaryDirectory() as folder:
        longest = settings.train.max_length
        parts = Parts(encoder, None, table, longest, settings.train.seed, 1, Path(folder), (), device, bf16)
        train(
            encoder,
            losses_from(settings.objective, parts),
            table,
            plan_from(settings.train, settings.augment, model, bf16=bf16),
            dev=None,
            folder=RunFolder(Path(folder)),
            observer=watch,
            device=device,
            group=group,
        )
    return watch.seconds_per_step()
