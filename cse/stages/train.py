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
from cse.model.checkpoint import save_checkpoint
from cse.model.encoder import SentenceEncoder
from cse.settings import Settings
from cse.settings.tree import AugmentSettings, ObjectiveSettings, TrainSettings
from cse.stages.build import encoder_from, losses_from, plan_from, second_text_from, views_of
from cse.stages.common import CHECKPOINT, CORRUPTED, METRICS, PLOTS, PREPARED, SCRATCH, run_stage
from cse.stages.corpus import check_post, fit_post, open_backbone
from cse.training.loop import train
from cse.training.observers import CsvLog, Observers, ProgressBar, TensorBoard
from cse.training.precision import choose_bf16, choose_device
from cse.training.state import RunFolder, RunState, fingerprint
from cse.training.tokens import TokenTable, tokenise

GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
DEV_BATCH = 64  # sentences


def train_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    corrupted: Path = CORRUPTED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "train.json",
    plots: Path = PLOTS / "train",
    scratch: Path = SCRATCH,
) -> None:
    """Train, or go on where a killed run of the same settings, data and code stopped, and publish the checkpoint.

    With ``train.parameters: none`` nothing is trained: the checkpoint is a read-out, word vectors or post-processing.
    """
    data = PreparedData(prepared)
    _check_view(data, settings.objective, settings.train)
    made_with = {
        "settings": {name: getattr(settings, name).model_dump(mode="json") for name in GROUPS},
        "data": _source(data),
    }
    backbone = open_backbone(settings.backbone, settings.pooler, data)
    device = choose_device(settings.train.device)
    bf16 = choose_bf16(settings.train.precision, device)
    encoder = encoder_from(
        backbone, settings.prompt, settings.template, settings.pooler, settings.augment, settings.train
    )
    check_post(encoder, settings.post)
    facts = {
        "settings": made_with["settings"],
        "backbone": backbone.files.sha256,
        "device": device.type,
        "bf16": bf16,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    run = fingerprint(facts, [*sorted(prepared.glob("*.arrow")), *sorted(corrupted.glob("*.npy")), *_code()])
    folder = RunFolder(scratch / "resume" / run)
    _announce(encoder, data, device, bf16)
    dev = data.dev
    results: dict[str, Any] = {}
    with naming(folder.path):
        if settings.train.parameters == "none":
            state = RunState()
            encoder.to(device)
        else:
            if dev is None:
                click.echo(
                    "no dev pairs: the last weights are kept, not the best; give data.dev_path to choose", err=True
                )
            table = _tokenise(encoder, data, settings.augment, settings.objective, settings.train)
            losses = losses_from(settings.objective, encoder, table, settings.train, corrupted=corrupted, device=device)
            state = train(
                encoder,
                losses,
                table,
                plan_from(settings.train, settings.augment, encoder.backbone, bf16=bf16),
                dev=None if dev is None else lambda: dev_score(encoder, dev, DEV_BATCH),
                folder=folder,
                observer=Observers(
                    [ProgressBar(), CsvLog(folder.path / "plots"), TensorBoard(scratch / "tensorboard" / run)]
                ),
                device=device,
            )
            results = _training_facts(state, settings.objective)
    if settings.post.kind != "none":
        fit_post(encoder, settings.post, data)
    if dev is not None and (settings.post.kind != "none" or settings.train.parameters == "none"):
        results["dev_spearman"] = round(dev_score(encoder, dev, DEV_BATCH), 4)
    encoder.to("cpu")
    results |= _counts(encoder)
    with publish_folder(plots) as target:
        for file, header in _PLOTS.items():
            source = folder.path / "plots" / file
            # a run without training has nothing to draw, but the plots of dvc.yaml look for both files
            (target / file).write_bytes(source.read_bytes() if source.is_file() else header)
    with publish_file(metrics) as target:
        target.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with publish_folder(checkpoint) as target:
        save_checkpoint(encoder, target, results | made_with)
    folder.remove()
    score = f", dev Spearman {results['dev_spearman']:.2f}" if "dev_spearman" in results else ""
    at = f" at step {results['best_step']}" if "best_step" in results and settings.post.kind == "none" else ""
    click.echo(f"trained {state.step} steps{score}{at}: {checkpoint}")


_PLOTS = {"train.csv": b"step,loss\n", "dev.csv": b"step,spearman\n"}


def _check_view(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse rows that were prepared for another objective: ``cse train -s`` may change what ``prepare`` went by."""
    needed = {"energy_hinge": "triplets", "nli_softmax": "labelled"}
    terms = [] if train.parameters == "none" else objective.terms()
    for term, view in needed.items():
        if term in terms and data.view != view:
            raise CseError(
                f"{data.folder}: holds {data.view}, but objective.{term} needs {view}; run `cse prepare` again"
            )
    if data.view == "labelled" and terms and terms != ["nli_softmax"]:
        raise CseError(
            f"{data.folder}: holds labelled rows, but objective.{terms[0]} compares positives; prepare again"
        )


def _tokenise(
    encoder: SentenceEncoder,
    data: PreparedData,
    augment: AugmentSettings,
    objective: ObjectiveSettings,
    train: TrainSettings,
) -> TokenTable:
    views = max(len(encoder.templates), 1)
    return tokenise(
        data.train,
        data.view,
        [encoder.tokenizer_of_view(view, training=True) for view in range(views)],
        max_length=train.max_length,
        pad_id=encoder.backbone.pad_id,
        views=views_of(objective),
        second_text=second_text_from(augment, encoder.backbone, train.seed),
        progress=sys.stderr.isatty(),
    )


def _training_facts(state: RunState, objective: ObjectiveSettings) -> dict[str, Any]:
    facts: dict[str, Any] = {"steps": state.step}
    if objective.replaced_tokens.weight > 0:
        facts["generator"] = objective.replaced_tokens.generator
    if state.best_score is not None:
        facts |= {"dev_spearman": round(state.best_score, 4), "best_step": state.best_step}
    return facts


def _counts(encoder: SentenceEncoder) -> dict[str, Any]:
    counts = encoder.counts()
    percent = round(100 * counts.prompts / max(counts.backbone, 1), 3)
    return {"parameters": vars(counts) | {"prompt_percent": percent}}


def _source(data: PreparedData) -> dict[str, Any]:
    """Return what a checkpoint says of the rows that it was trained on."""
    train = data.report["train"]
    return {"source": train["source"], "view": data.view, "rows": train["kept"]}


def _announce(encoder: SentenceEncoder, data: PreparedData, device: torch.device, bf16: bool) -> None:
    counts = encoder.counts()
    click.echo(
        f"{encoder.backbone.files.name}: training {counts.trained:,} weights beside {counts.backbone:,} "
        f"({100 * counts.trained / max(counts.backbone, 1):.2f} %), pooler {encoder.pooler}, "
        f"{len(data.train):,} {data.view}, {device.type} {'bf16' if bf16 else 'fp32'}",
        err=True,
    )


def _code() -> list[Path]:
    """Return the files whose change makes a saved state stale: those that decide what an update does."""
    root = Path(__file__).parents[1]
    return [path for part in ("model", "objectives", "training") for path in sorted((root / part).rglob("*.py"))]


if __name__ == "__main__":
    run_stage(train_stage)
