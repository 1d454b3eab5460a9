"""Training and encoding speed relative to sentence-transformers, measured in one run on one machine.

    python -m benchmarks.throughput                                   # generated text
    python -m benchmarks.throughput --triplets nli_for_simcse.csv     # your own

Training: prompts on the frozen backbone (this project, bf16 where the hardware has it) and full fine-tuning of the
same backbone with MultipleNegativesRankingLoss (sentence-transformers' own trainer, its defaults: fp32), both on the
same triplets, batch size and length limit. Encoding: ``OnnxEncoder`` with and without prompts and
``SentenceTransformer.encode``, float32, the same distinct sentences. Rounds are interleaved, medians are shown; run it
on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset

from benchmarks.default_system import default_encoder, seconds_per_step
from cse import OnnxEncoder, SentenceEncoder
from cse.data.readers import read_rows
from cse.data.sample import sample_rows
from cse.export.bundle import write_bundle
from cse.model.backbone_files import MINILM, find_backbone
from cse.settings import Settings
from cse.training.precision import choose_bf16, choose_device

MAX_LENGTH = 32


def train_ours(rows: Dataset, batch_size: int) -> float:
    """Return training sentences per second of prompts with NT-Xent and the hinge, after the first reported steps."""
    seconds = seconds_per_step(rows, choose_device("auto"), batch_size=batch_size, row_groups=8)
    return batch_size * 3 / seconds


def train_theirs(rows: Dataset, batch_size: int) -> float:
    """Return training sentences per second of sentence-transformers' trainer, after its first steps."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers import TrainerCallback

    times: list[tuple[int, float]] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            times.append((state.global_step, time.perf_counter()))  # type: ignore[attr-defined]

    model = SentenceTransformer(str(find_backbone(MINILM).folder))
    model.max_seq_length = MAX_LENGTH
    with tempfile.TemporaryDirectory() as folder:
        arguments = Arguments(
            output_dir=folder, num_train_epochs=1, per_device_train_batch_size=batch_size, learning_rate=5e-5,
            save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=rows, loss=MultipleNegativesRankingLoss(model)
        )
        trainer.add_callback(Clock())
        trainer.train()
    (first, begin), (last, end) = times[0], times[-1]
    return (last - first) * batch_size * 3 / (end - begin)


def encoders(folder: Path) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Return the encoders to compare, by name."""
    from sentence_transformers import SentenceTransformer

    found: dict[str, Callable[[list[str]], np.ndarray]] = {}
    peer = SentenceTransformer(str(find_backbone(MINILM).folder), device="cpu")
    found["SentenceTransformer.encode"] = lambda texts: peer.encode(texts)
    models = {
        "OnnxEncoder, prompts": default_encoder(Settings()),
        "OnnxEncoder, bare": SentenceEncoder.load(MINILM),
    }
    for name, encoder in models.items():
        with write_bundle(encoder, folder / name, normalize=True, metrics={}):
            pass
        found[name] = OnnxEncoder(folder / name, provider="cpu").encode
    return found


def encode_speeds(texts: list[str], rounds: int) -> dict[str, list[float]]:
    """Return sentences per second of each round, by encoder; every round runs all encoders."""
    with tempfile.TemporaryDirectory() as folder:
        candidates = encoders(Path(folder))
        for encode in candidates.values():
            encode(texts[:200])
        speeds: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, encode in candidates.items():
                start = time.perf_counter()
                encode(texts)
                speeds[name].append(len(texts) / (time.perf_counter() - start))
    return speeds


def main() -> None:
    """Measure and print; ``--json`` also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triplets", type=Path, help="csv of triplets; default: generated")
    parser.add_argument("--rows", type=int, default=1536, help="training triplets of each round")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--sentences", type=int, default=3000, help="distinct sentences to encode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["train", "encode"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.triplets:
        source = (row.texts for row in read_rows(options.triplets, "triplets"))
    else:
        source = sample_rows("triplets", options.rows + options.sentences, seed=1)
    triplets = list(islice(source, options.rows + options.sentences))
    rows = Dataset.from_list([dict(zip(("sent0", "sent1", "hard_neg"), row, strict=True)) for row in triplets])
    texts = list(dict.fromkeys(text for row in triplets for text in row))[: options.sentences]
    print(f"{os.cpu_count()} cpus, torch {torch.__version__}, bf16 {choose_bf16('auto', choose_device('auto'))}")
    print(
        f"{len(texts)} sentences to encode, {statistics.mean(len(text.split()) for text in texts):.1f} words on average"
    )

    figures: dict[str, float] = {}
    if options.only != "encode":
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(train_ours(rows.select(range(options.rows)), options.batch_size))
            theirs.append(train_theirs(rows.select(range(options.rows)), options.batch_size))
            print(f"train: prompts {ours[-1]:.0f}, full fine-tuning {theirs[-1]:.0f} sentences/s", flush=True)
        figures["train, prompts (sentences/s)"] = statistics.median(ours)
        figures["train, sentence-transformers full (sentences/s)"] = statistics.median(theirs)
        figures["train, ratio"] = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    if options.only != "train":
        speeds = encode_speeds(texts, options.rounds)
        for name, values in speeds.items():
            figures[f"encode, {name} (sentences/s)"] = statistics.median(values)
        peer, with_prompts, bare = (np.array(values) for values in speeds.values())
        figures["encode, ratio"] = float(np.median(with_prompts / peer))
        figures["encode, cost of prompts (%)"] = float(np.median(100 * (bare / with_prompts - 1)))
    for name, value in figures.items():
        print(f"{name:55} {value:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
