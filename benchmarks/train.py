"""Training speed against sentence-transformers at its best, and as a share of the machine's matrix products.

    python -m benchmarks.train                                       # MiniLM, the sample's triplets
    python -m benchmarks.train --triplets nli_for_simcse.csv         # your own
    python -m benchmarks.train --backbone random:bert-base --view sentences --device cuda

Contestants: prompts on the frozen backbone (this project, its default system); sentence-transformers' trainer with
MultipleNegativesRankingLoss, full fine-tuning in fp32 and bf16; the same trainer with a prefix of PEFT on the frozen
backbone. The same rows, batch size and length limit for all; plain sentences are trained in two copies. Set-up and the
first steps do not count. Rounds are interleaved, medians are shown, ratios with least and most; run it while the
machine is idle.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from transformers.utils import is_flash_attn_2_available
from transformers.utils.logging import disable_progress_bar

from benchmarks import floor
from benchmarks.harness import facts, interleave, lengths_in_words, parser_of, percent, ratio, run, table
from benchmarks.inputs import add_inputs, backbone_folder, lengths_of, rows_of
from cse.data.store import view_of
from cse.errors import CseError
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.device import choose_bf16, choose_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings import Settings, check_settings
from cse.training.batch import tokenise
from cse.training.encoder import encoder_from
from cse.training.loop import train as train_loop
from cse.training.losses import losses_from
from cse.training.observers import Observer, StepRecord
from cse.training.state import RunFolder

OURS = "prompts"
FIRST = 5  # steps that warm up and do not count
STEPS = {"cpu": 12, "cuda": 150}
PASSES = {"triplets": 3, "sentences": 2}  # texts that go through the model per row
MAX_LENGTH = 32  # tokens of a text

# precision and FLOPs per weight and token, by contestant
Cost = dict[str, tuple[str, int]]


class _Times(Observer):
    def __init__(self) -> None:
        self.times: list[tuple[int, float]] = []

    def step(self, record: StepRecord) -> None:
        self.times.append((record.step, time.perf_counter()))


def default_encoder(settings: Settings, backbone: Path) -> SentenceEncoder:
    """Return a backbone with new prompts."""
    return encoder_from(load_backbone(find_backbone(str(backbone))), settings)


def seconds_per_step(rows: pa.Table, device: torch.device, backbone: Path, **changes: Any) -> float:
    """Train the default system without evaluation; return seconds per step after the first report.

    ``changes`` are settings of ``train``.
    """
    view = view_of(rows)
    tree: dict[str, Any] = {"data": {"view": view}, "train": {"save_seconds": 1e9, **changes}}
    if view != "triplets":
        tree["objective"] = {"energy_hinge": {"weight": 0.0}}  # it needs hard negatives
    settings = check_settings(tree, where="benchmark")
    encoder, watch = default_encoder(settings, backbone), _Times()
    model, plan = encoder.backbone, settings.train
    table = tokenise(rows, view, [model.tokenizer], max_length=plan.max_length, pad_id=model.pad_id)
    bf16 = choose_bf16(plan.precision, device)
    with tempfile.TemporaryDirectory() as folder:
        train_loop(
            encoder,
            losses_from(settings.objective, encoder, plan, table),
            [table],
            plan,
            augment=settings.augment,
            bf16=bf16,
            dev=None,
            folder=RunFolder(Path(folder)),
            observer=watch,
            device=device,
        )
    if len(watch.times) < 2:
        raise CseError("benchmark: too few steps for two reports of the training; give more rows")
    (first, begin), (last, end) = watch.times[0], watch.times[-1]
    return (end - begin) / (last - first)


def contestants(
    rows: pa.Table, folder: Path, device: torch.device, batch_size: int
) -> tuple[dict[str, Callable[[], float]], Cost]:
    """Return what measures seconds per step, by contestant, and what each one's step costs."""
    native = choose_bf16("auto", device)
    best = "bf16" if native else "fp32"

    def run_ours() -> float:
        return seconds_per_step(rows, device, folder, batch_size=batch_size, max_length=MAX_LENGTH)

    def run_full(bf16: bool, attention: str = "sdpa") -> float:
        model = full_model(folder, device, MAX_LENGTH, attention)
        return train(model, rows, batch_size=batch_size, first=FIRST, bf16=bf16)[0]

    def run_prefix() -> float:
        model = prefix_model(folder, device, MAX_LENGTH, bf16=native)
        return train(model, rows, batch_size=batch_size, first=FIRST, bf16=native)[0]

    found: dict[str, tuple[Callable[[], float], str, int]] = {OURS: (run_ours, best, floor.FROZEN_STEP)}
    try:
        from benchmarks.peers.training import full_model, prefix_model, train

        found["full fine-tuning, fp32"] = (lambda: run_full(False), "fp32", floor.FULL_STEP)
        if native:
            found["full fine-tuning, bf16"] = (lambda: run_full(True), "bf16", floor.FULL_STEP)
        if device.type == "cuda" and is_flash_attn_2_available():
            unpadded = partial(run_full, True, "flash_attention_2")
            found["full fine-tuning, bf16, unpadded"] = (unpadded, "bf16", floor.FULL_STEP)
        elif device.type == "cuda":
            print("skipped: full fine-tuning, bf16, unpadded: flash_attn is not installed")
        found[f"PEFT prefix, {best}"] = (run_prefix, best, floor.FROZEN_STEP)
    except ModuleNotFoundError as error:
        more = "run: pip install -c constraints.txt -e '.[benchmarks]'"
        print(f"skipped: sentence-transformers' trainer: {error}; {more}")
    return {name: run for name, (run, *_) in found.items()}, {name: (of, cost) for name, (_, of, cost) in found.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything and return the figures."""
    from transformers import AutoConfig, AutoModel

    device = choose_device(options.device)
    steps = options.steps or STEPS[device.type]
    if steps <= 2 * FIRST:
        raise CseError(f"--steps: {steps} are too few, the first {FIRST} do not count; give {2 * FIRST + 1} or more")
    rows = rows_of(options.view, steps * options.batch_size, options.triplets)
    figures: dict[str, Any] = facts(floor.name_of(device)) | {
        "backbone": options.backbone,
        "view": options.view,
        "triplets": options.triplets.name if options.triplets else "sample",
        "batch_size": options.batch_size,
        "steps": steps,
    }
    with backbone_folder(options.backbone) as folder:
        config = AutoConfig.from_pretrained(folder)
        count = floor.weights(AutoModel.from_config(config))
        texts = [text for name in rows.column_names for text in rows[name].to_pylist()]
        lengths = lengths_of(texts, folder, MAX_LENGTH)
        print(lengths_in_words(lengths, MAX_LENGTH))
        rates = floor.measure(config, device)
        print(floor.in_words(rates), flush=True)
        runs, costs = contestants(rows, folder, device, options.batch_size)
        seconds = interleave(runs, options.rounds)
        rates = floor.better(rates, floor.measure(config, device))
    passes = PASSES[options.view] * options.batch_size
    tokens = passes * statistics.mean(lengths)
    figures |= {"weights": count, "floor": rates, "seconds_per_step": seconds}
    figures["contestants"] = {}
    for name, values in seconds.items():
        median = statistics.median(values)
        precision, cost = costs[name]
        figures["contestants"][name] = {
            "precision": precision,
            "sentences_per_s": passes / median,
            "tokens_per_s": tokens / median,
            "share_of_floor": floor.share(tokens / median, cost, count, rates.get(precision)),
        }
    spread = {name: ratio(values, seconds[OURS]) for name, values in seconds.items() if name != OURS}
    figures["spread"] = {name: (value.least, value.most) for name, value in spread.items()}
    figures["ratios"] = {f"{OURS} / {name}": value.median for name, value in spread.items()}
    figures["ratios"]["share of floor"] = figures["contestants"][OURS]["share_of_floor"] or 0.0
    lines = [
        (
            f"{name} (ours, {found['precision']})" if name == OURS else name,
            f"{found['sentences_per_s']:,.0f}",
            f"{found['tokens_per_s']:,.0f}",
            percent(found["share_of_floor"]),
            str(spread.get(name, 1)),
        )
        for name, found in figures["contestants"].items()
    ]
    head = ("training", "sentences/s", "real tokens/s", "share of floor", "ours / this (least-most)")
    return figures | {"table": table(head, lines)}


def main() -> int:
    """Print the table and keep the figures."""
    disable_progress_bar()
    parser = parser_of(__doc__)
    add_inputs(parser)
    parser.add_argument("--view", choices=list(PASSES), default="triplets", help="of the rows")
    parser.add_argument("--batch-size", type=int, default=256, help="rows per step")
    parser.add_argument("--steps", type=int, help=f"of each round; default: {STEPS['cpu']}, {STEPS['cuda']} on a GPU")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    return run("train", lambda: measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
