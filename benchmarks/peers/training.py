"""sentence-transformers' own trainer: full fine-tuning, and PEFT's prefix tuning on the frozen backbone.

Its batches are the plain ones: its samplers group by label or keep duplicates apart, none groups by length.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import PrinterCallback, TrainerCallback

from benchmarks.floor import wait
from cse.model.backbone_files import quietly

VIRTUAL_TOKENS = 12  # as many as our prompts


class StepClock(TrainerCallback):
    """Notes the time after ``first`` steps, and after the last; the device is waited for only then."""

    def __init__(self, first: int, device: torch.device) -> None:
        self.first, self.device = first, device
        self.times: list[tuple[int, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the time, if it counts."""
        if state.global_step in (self.first, state.max_steps):
            wait(self.device)
            self.times.append((state.global_step, time.perf_counter()))

    def seconds_per_step(self) -> float:
        """Return the mean over the steps after the first ones."""
        (first, begin), (last, end) = self.times
        return (end - begin) / (last - first)


def full_model(folder: Path, device: torch.device, max_length: int, attention: str = "sdpa") -> SentenceTransformer:
    """Return a model of which every weight is trained; with ``flash_attention_2`` it does not pad."""
    model = SentenceTransformer(str(folder), device=str(device), model_kwargs={"attn_implementation": attention})
    model.max_seq_length = max_length
    return model


def prefix_model(folder: Path, device: torch.device, max_length: int, *, bf16: bool = True) -> SentenceTransformer:
    """Return a model of which PEFT trains a prefix alone; the frozen weights are in bf16 once, if wanted.

    PEFT gives the model a mask that is longer by the prefix; the pooling behind it keeps that of the tokens.
    """
    from peft import PrefixTuningConfig, get_peft_model

    dtype = {"dtype": torch.bfloat16 if bf16 else torch.float32}
    model = SentenceTransformer(str(folder), device=str(device), model_kwargs=dtype)
    model.max_seq_length = max_length
    config = PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=VIRTUAL_TOKENS)
    with quietly():
        model[0].model = get_peft_model(model[0].model, config)
    return model


def train(
    model: SentenceTransformer,
    rows: pa.Table,
    *,
    batch_size: int,
    first: int,
    bf16: bool,
    learning_rate: float = 5e-5,
    every: int = 0,
) -> tuple[float, list[float]]:
    """Train for one pass of triplets, pairs, or sentences, which are their own positives.

    Returns seconds per step after the ``first`` ones, and the loss of every so many steps (0: none, as reading them
    waits for the device).
    """
    if rows.column_names == ["sent0"]:
        rows = rows.append_column("sent1", rows["sent0"])
    device = model.device
    clock = StepClock(first, device)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT: it takes no token types
        arguments = Arguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch_size,
            learning_rate=learning_rate,
            bf16=bf16,
            use_cpu=device.type == "cpu",
            dataloader_drop_last=True,
            # workers of the data loader tokenise beside a GPU; on a CPU they would take the cores that compute
            dataloader_num_workers=2 if device.type == "cuda" else 0,
            logging_nan_inf_filter=False,  # it would wait for the device in each step
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="steps" if every else "no",
            logging_steps=max(every, 1),
        )
        with redirect_stderr(StringIO()):  # a progress bar of examples for the model's card
            trainer = SentenceTransformerTrainer(
                model=model, args=arguments, train_dataset=Dataset(rows), loss=MultipleNegativesRankingLoss(model)
            )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(clock)
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return clock.seconds_per_step(), losses
