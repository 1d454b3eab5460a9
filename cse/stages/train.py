"""Stage ``train``: train a backbone on prepared rows and write a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from cse.artifact import sha256
from cse.data.store import PreparedData, rows_in_words
from cse.errors import counted
from cse.evaluation.dev_facts import DEV, SELECTION, START, DevScore, dev_column, dev_keys, dev_of, facts_of
from cse.files import fingerprint, is_json_with, naming, write_json
from cse.model.checkpoint import count_parameters, save_checkpoint
from cse.model.device import environment
from cse.outputs import Kind, check_file, check_folder, publish_file, publish_folder
from cse.process import only_one
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.settings.objective import ObjectiveSettings
from cse.stages.common import CHECKPOINT, METRICS, PLOTS, PREPARED, SCRATCH, run_stage
from cse.training.fit_post import fit_post
from cse.training.ready import Training, groups_of, open_training
from cse.training.state import RunState


def launched(training: Training) -> RunState:
    """Train in this process or on several workers, as ``train.workers`` says."""
    if training.settings.train.workers == 1:
        return training.run(training.watchers())
    from cse.training.workers import train_on_workers  # imports Ray

    return train_on_workers(training)


def train_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "train.json",
    plots: Path = PLOTS / "train",
    scratch: Path = SCRATCH,
    launch: Callable[[Training], RunState] = launched,
    kept: KeptVectors | None = None,
    say: Callable[..., object] = click.echo,
) -> dict[str, Any]:
    """Train, or resume a killed run of the same settings, data and code, and publish the checkpoint.

    With ``train.parameters: none`` the checkpoint is just pooling, word vectors or post-processing, without training.

    Args:
        launch: runs the training and leaves the best weights in its encoder.
        kept: has the vectors of the bare backbone, where it is the side of documents.
        say: prints what is trained and what came of it.

    Returns:
        Facts of the run, as stored in the checkpoint; ``metrics`` has those for comparing runs.
    """
    check_folder(checkpoint, Kind.CHECKPOINT)
    check_folder(plots, Kind.PLOTS)
    check_file(metrics, is_json_with("parameters"))
    place = fingerprint({"checkpoint": str(checkpoint.resolve())})
    with only_one(
        scratch / "locks" / place,
        f"{checkpoint}: another training is writing here; wait until it finishes, or give another --out",
    ):
        training = open_training(settings, prepared, scratch=scratch, kept=kept)
        with only_one(
            scratch / "locks" / training.folder.path.name,
            f"{training.folder.path}: a training with the same settings and data is running; wait until it finishes",
        ):
            return _train(training, checkpoint, metrics, plots, launch, say)


def _train(
    training: Training,
    checkpoint: Path,
    metrics: Path,
    plots: Path,
    launch: Callable[[Training], RunState],
    say: Callable[..., object],
) -> dict[str, Any]:
    settings, encoder, data, folder = training.settings, training.encoder, training.data, training.folder
    say(_announcement(training), err=True)
    results: dict[str, Any] = {}
    with naming(folder.path):
        if settings.train.parameters == "none":
            state = RunState()
            encoder.to(training.device)
        else:
            if training.dev is None:
                say(
                    "no dev pairs: keeping the last weights, not the best; set data.dev_path to select the best",
                    err=True,
                )
            elif not training.objective.comparing:
                say(
                    f"objective.{training.objective.first} compares no sentences: keeping the last weights, "
                    "regardless of the dev score",
                    err=True,
                )
            start: dict[str, Any] = {}
            if training.chooses_otherwise and training.dev is not None:
                encoder.to(training.device)
                start = facts_of(training.score_at_inference(training.dev), START)
                encoder.to("cpu")
            state = launch(training)
            results = _training_facts(state, training.objective, training.measure) | start
    if settings.post.kind != "none":
        weights = {source.name: source.weight for source in settings.data.more}
        fit_post(encoder, settings.post, data, weights)
    if settings.post.kind != "none" or settings.train.parameters == "none" or training.chooses_otherwise:
        results = _at_inference(training, results)
    encoder.to("cpu")
    counts = count_parameters(encoder)
    percent = round(100 * counts.prompts / max(counts.backbone, 1), 3)
    results["parameters"] = vars(counts) | {"prompt_percent": percent}
    if settings.train.parameters != "none" or settings.post.kind != "none":
        results["trained_on"] = rows_in_words(_rows(training))
    with publish_folder(plots, Kind.PLOTS) as target:
        for file, header in (("train.csv", "step,loss\n"), ("dev.csv", f"step,{dev_column(training.measure)}\n")):
            source = folder.path / "plots" / file
            # without training there are no curves, but the plots in dvc.yaml expect both files
            (target / file).write_bytes(source.read_bytes() if source.is_file() else header.encode())
    with publish_file(metrics) as target:
        write_json(target, _headline(results))
    bf16 = training.bf16 and settings.train.parameters != "none"
    facts = results | {
        "settings": groups_of(settings),
        "data": _rows(training),
        "precision": "bf16" if bf16 else "fp32",  # it, the device and the packages affect rounding
        "environment": environment(training.device.type),
    }
    with publish_folder(checkpoint, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, facts)
    folder.remove()
    say(f"trained {counted(state.step, 'step')}{_outcome(results, post=settings.post.kind)}: {checkpoint}")
    return results


def _at_inference(training: Training, results: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with the dev score at inference, and what chose the checkpoint beside it."""
    chosen, dev = dev_of(results), training.dev
    if training.settings.post.kind != "none":  # before training there was none: the two do not compare
        results = {name: value for name, value in results.items() if name not in dev_keys(START)[:-1]}
    chosen_as = {} if chosen is None else facts_of(chosen, SELECTION)
    return results | chosen_as | ({} if dev is None else facts_of(training.score_at_inference(dev)))


def _outcome(results: dict[str, Any], *, post: str) -> str:
    """Return the part of the closing line about the dev score."""
    dev, selection, start = (dev_of(results, which) for which in (DEV, SELECTION, START))
    if dev is None:
        return ""
    score = f", {dev}"
    if selection is not None:
        score += f", encoded as in training {selection.value:.2f}"
    if post != "none" or start is None:
        return score
    if results.get("best_step") == 0:
        return f"{score}: keeping the initial weights, since no later evaluation scored higher"
    at = f" at step {results['best_step']}" if "best_step" in results else ""
    return f"{score}{at} (before training {start.value:.2f})"


def _training_facts(state: RunState, objective: ObjectiveSettings, measure: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"steps": state.step}
    if objective.replaced_tokens.weight > 0:
        facts["generator"] = objective.replaced_tokens.generator_model
    if state.evaluations:
        facts |= facts_of(DevScore(state.evaluations[0][1], measure), START)
        facts |= facts_of(DevScore(state.evaluations[-1][1], measure))
    if state.best_score is not None:
        facts |= facts_of(DevScore(state.best_score, measure)) | {"best_step": state.best_step}
    return facts


def _headline(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts for ``dvc metrics show``, score first; the checkpoint has all parameter counts."""
    names = (*dev_keys(DEV, START), "best_step", "steps")
    first = {name: results[name] for name in names if name in results}
    return {**first, **results, "parameters": {"trained": results["parameters"]["trained"]}}


def _rows(training: Training) -> dict[str, Any]:
    """Return what a checkpoint records about its training rows."""
    main, *more = training.sources
    report, names = main.data.report, [source.name for source in training.settings.data.more]
    others = {name: _source(source.data, report["more"][name]) for name, source in zip(names, more, strict=False)}
    return _source(main.data, report["train"]) | ({"more": others} if others else {})


def _source(data: PreparedData, cleaned: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": cleaned["source"],
        "view": data.view,
        "rows": len(data.train),
        "content": sha256(data.rows_file)[:16],
        "dropped": sum(entry["count"] for entry in cleaned.get("dropped", {}).values()),
        "evaluation_overlap": cleaned.get("evaluation_overlap_kept", 0),
    }


def _announcement(training: Training) -> str:
    encoder = training.encoder
    counts = count_parameters(encoder)
    return (
        f"{encoder.backbone.files.name}: training {counts.trained:,} weights "
        f"({100 * counts.trained / max(counts.backbone, 1):.2f} % of the backbone's {counts.backbone:,}), "
        f"pooler {encoder.pooler}, {rows_in_words(_rows(training))}, "
        f"{training.device.type} {'bf16' if training.bf16 else 'fp32'}"
    )


if __name__ == "__main__":
    run_stage(train_stage)
