"""Cost of the second pass of D2CSE and of DCPCSE's MLM term: time per step relative to PromCSE's.

    python -m benchmarks.second_pass

The backbone has BERT-base's shape, MLM head included, and random weights, which do not affect speed; text is generated.
Systems alternate step by step, so that other load slows all alike; medians are shown. ``on the fly`` runs a generator
half as deep; ``prepared`` reads rows corrupted beforehand. The last column counts the generators in memory during
training.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import BertForMaskedLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.random_bert import SHAPES, save_bert
from cse.data.sample import sample_rows
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.generator import MaskedLmGenerator
from cse.model.mlm_head import load_mlm_head
from cse.settings import Settings, check_settings
from cse.settings.load import set_key
from cse.stages.build.encoder import encoder_from
from cse.stages.build.losses import Parts, losses_from
from cse.stages.build.replaced_tokens import corruption_facts, corruption_from, generator_from
from cse.stages.common import CORRUPTION_FILE
from cse.training.batch import NO_AUGMENTATION, encode_batch
from cse.training.corruption import Vocabulary, corrupt_all
from cse.training.precision import choose_bf16, choose_device
from cse.training.slices import Cut
from cse.training.tokens import TokenTable, tokenise

MAX_LENGTH, PROMPTS = 32, 16
SYSTEMS: dict[str, dict[str, Any]] = {
    "PromCSE": {},
    "DCPCSE + MLM": {"objective.masked_lm.weight": 0.1},
    "D2CSE, prepared": {
        "pooler.projector": "batch_norm",
        "objective.replaced_tokens.weight": 0.005,
        "objective.replaced_tokens.corruption": "prepared",
        "objective.replaced_tokens.generator_dropout": False,
    },
    "D2CSE, on the fly": {"pooler.projector": "batch_norm", "objective.replaced_tokens.weight": 0.005},
}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences per step, two copies each")
    parser.add_argument("--steps", type=int, default=5, help="measured steps per system")
    args = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_bert(folder / "backbone", SHAPES[args.shape], BertForMaskedLM)
        half = SHAPES[args.shape] | {"num_hidden_layers": SHAPES[args.shape]["num_hidden_layers"] // 2}
        save_bert(folder / "generator", half, BertForMaskedLM)
        # training a tokenizer twice does not give the same one
        shutil.copyfile(folder / "backbone/tokenizer.json", folder / "generator/tokenizer.json")
        table = rows_of(args.batch_size, args.steps + 1, load(folder))
        write_corruption(folder, table)
        systems: dict[str, tuple[Callable[[int], float], int]] = {}
        for system in SYSTEMS:
            before = generators()
            step = make_step(system, folder, table, args.batch_size)
            systems[system] = (step, generators() - before)
        times: dict[str, list[float]] = {system: [] for system in systems}
        for number in range(args.steps + 1):
            for system, (step, _) in systems.items():
                times[system].append(step(number))
    base = statistics.median(times["PromCSE"][1:])
    print("| system | seconds per step | ratio to PromCSE | generators in memory |\n|---|---|---|---|")
    for system, seconds in times.items():
        median = statistics.median(seconds[1:])  # the first step warms up
        print(f"| {system} | {median:.2f} | {median / base:.2f} | {systems[system][1]} |")


def load(folder: Path) -> Backbone:
    """Load the saved backbone."""
    return load_backbone(find_backbone(str(folder / "backbone")))


def rows_of(batch_size: int, steps: int, backbone: Backbone) -> TokenTable:
    """Tokenise as many generated sentences as the steps need."""
    texts = [text for (text,) in sample_rows("sentences", batch_size * steps, 1)]
    rows = pa.table({"sent0": texts})
    return tokenise(rows, "sentences", [backbone.tokenizer], max_length=MAX_LENGTH, pad_id=backbone.pad_id)


def settings_of(system: str, folder: Path) -> Settings:
    """Return the settings of a system."""
    values = {
        "data.view": "sentences",
        "prompt.length": PROMPTS,
        "pooler.mlp": "train_only",
        "train.max_length": MAX_LENGTH,
        "objective.energy_hinge.weight": 0.0,
        "objective.replaced_tokens.generator": "folder",
        "objective.replaced_tokens.generator_folder": str(folder / "generator"),
    }
    tree: dict[str, Any] = {}
    for key, value in (values | SYSTEMS[system]).items():
        set_key(tree, key, value)
    return check_settings(tree, where=system)


def write_corruption(folder: Path, table: TokenTable) -> None:
    """Corrupt the rows beforehand."""
    settings, backbone = settings_of("D2CSE, prepared", folder), load(folder)
    replaced, seed = settings.objective.replaced_tokens, settings.train.seed
    generator = generator_from(replaced, backbone, table, torch.device("cpu"), bf16=False)
    how, vocabulary = corruption_from(replaced, seed), Vocabulary.of(backbone)
    corrupt_all(table, folder, how=how, vocabulary=vocabulary, generator=generator, epochs=1)
    facts = {"corruption": "prepared", **corruption_facts(replaced, seed)}
    (folder / CORRUPTION_FILE).write_text(json.dumps(facts), encoding="utf-8")


def make_step(system: str, folder: Path, table: TokenTable, batch_size: int) -> Callable[[int], float]:
    """Return a function that trains one step of a system and returns its seconds."""
    settings, backbone, device = settings_of(system, folder), load(folder), choose_device("auto")
    encoder = encoder_from(
        backbone, settings.prompt, settings.template, settings.pooler, settings.augment, settings.train
    )
    encoder.to(device).train()
    head = load_mlm_head(backbone, wanted_by=system) if settings.objective.needing_head else None
    bf16 = choose_bf16("auto", device)
    train = settings.train
    parts = Parts(encoder, head, table, train.max_length, train.seed, 1, folder, (), device, bf16)
    losses = losses_from(settings.objective, parts).to(device).train()
    weights = [*encoder.trainable().values(), *losses.trainable().values()]
    optimizer = torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.0)

    def step(number: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        clock = time.perf_counter()
        rows = np.arange(number * batch_size, (number + 1) * batch_size)
        batch = encode_batch(
            encoder, table, rows, cut=Cut(1, None), augmentation=NO_AUGMENTATION, rng=np.random.default_rng(number),
            step=number, epoch=0, device=device, bf16=bf16,
        )  # fmt: skip
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = losses(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - clock

    return step


def generators() -> int:
    """Count the generators that are alive."""
    gc.collect()
    return sum(isinstance(thing, MaskedLmGenerator) for thing in gc.get_objects())


if __name__ == "__main__":
    main()
