"""Stage ``train``: prepared rows and a backbone become a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import torch

from cse.data.store import PreparedData
from cse.errors import CseError
from cse.evaluation.sts import dev_score
from cse.files import naming, publish_file, publish_folder
from cse.model.backbone import find_backbone, load_backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.encoder import SentenceEncoder
from cse.settings import Settings
from cse.stages.build import encoder_from, objective_from, plan_from
from cse.stages.common import CHECKPOINT, METRICS, PLOTS, PREPARED, SCRATCH, run_stage
from cse.training.loop import train
from cse.training.observers import CsvLog, Observers, ProgressBar, TensorBoard
from cse.training.precision import choose_bf16, choose_device
from cse.training.state import RunFolder, RunState, fingerprint
from cse.training.tokens import tokenise

GROUPS = ("backbone", "prompt", "pooler", "objective", "train")
DEV_BATCH = 64  # sentences


def train_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "train.json",
    plots: Path = PLOTS / "train",
    scratch: Path = SCRATCH,
) -> None:
    """Train, or go on where a killed run of the same settings, data and code stopped, and publish the checkpoint."""
    data = PreparedData(prepared)
    files = find_backbone(settings.backbone.name, settings.backbone.revision)
    device = choose_device(settings.train.device)
    bf16 = choose_bf16(settings.train.precision, device)
    encoder = encoder_from(load_backbone(files, settings.pooler.kind), settings.prompt, settings.pooler, settings.train)
    objective = objective_from(settings.objective)
    if settings.objective.energy_hinge.weight > 0 and data.view != "triplets":
        raise CseError(
            f"{prepared}: holds {data.view}, but objective.energy_hinge needs triplets; run `cse prepare` again"
        )

    facts = {
        "settings": {name: getattr(settings, name).model_dump() for name in GROUPS},
        "backbone": files.sha256,
        "device": device.type,
        "bf16": bf16,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    run = fingerprint(facts, [*sorted(prepared.glob("*.arrow")), *_code()])
    folder = RunFolder(scratch / "resume" / run)
    _announce(encoder, data, device, bf16)
    table = tokenise(
        data.train,
        data.view,
        encoder.backbone.tokenizer,
        max_length=settings.train.max_length,
        pad_id=encoder.backbone.pad_id,
        progress=sys.stderr.isatty(),
    )
    dev = data.dev
    if dev is None:
        click.echo("no dev pairs: the last weights are kept, not the best; give data.dev_path to choose", err=True)
    with naming(folder.path):
        state = train(
            encoder,
            objective,
            table,
            plan_from(settings.train, bf16=bf16),
            dev=None if dev is None else lambda: dev_score(encoder, dev, DEV_BATCH),
            folder=folder,
            observer=Observers(
                [ProgressBar(), CsvLog(folder.path / "plots"), TensorBoard(scratch / "tensorboard" / run)]
            ),
            device=device,
        )
    facts = _facts(encoder, state)
    with publish_folder(plots) as target:
        for path in sorted((folder.path / "plots").glob("*.csv")):
            (target / path.name).write_bytes(path.read_bytes())
    with publish_file(metrics) as target:
        target.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with publish_folder(checkpoint) as target:
        save_checkpoint(encoder, target, facts)
    folder.remove()
    score = "" if state.best_score is None else f", dev Spearman {state.best_score:.2f} at step {state.best_step}"
    click.echo(f"trained {state.step} steps{score}: {checkpoint}")


def _facts(encoder: SentenceEncoder, state: RunState) -> dict[str, Any]:
    counts = encoder.counts()
    facts: dict[str, Any] = {
        "steps": state.step,
        "parameters": vars(counts) | {"prompt_percent": round(100 * counts.prompts / counts.backbone, 3)},
    }
    if state.best_score is not None:
        facts |= {"dev_spearman": round(state.best_score, 4), "best_step": state.best_step}
    return facts


def _announce(encoder: SentenceEncoder, data: PreparedData, device: torch.device, bf16: bool) -> None:
    counts = encoder.counts()
    click.echo(
        f"{encoder.backbone.files.name}: training {counts.trained:,} weights beside {counts.backbone:,} "
        f"({100 * counts.trained / counts.backbone:.2f} %), pooler {encoder.pooler}, "
        f"{len(data.train):,} {data.view}, {device.type} {'bf16' if bf16 else 'fp32'}",
        err=True,
    )


def _code() -> list[Path]:
    """Return the files whose change makes a saved state stale: those that decide what an update does."""
    root = Path(__file__).parents[1]
    return [path for part in ("model", "objectives", "training") for path in sorted((root / part).glob("*.py"))]


if __name__ == "__main__":
    run_stage(train_stage)
