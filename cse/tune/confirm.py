"""Confirm a sweep: train its best settings with several seeds, write the choice down, then open the test sets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.data.store import PreparedData
from cse.data.suite import SuiteData, open_suite
from cse.data.tasks.kinds import CaptionPairs, ScoredPairs
from cse.errors import CseError, nearest
from cse.evaluation.comparison import compared_rows, half_width_of_mean
from cse.evaluation.record import Record, read_record
from cse.evaluation.suite import content_of_suite
from cse.evaluation.table import format_rows
from cse.ledger import Ledger, RunRecord
from cse.outputs import Kind, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System
from cse.stages.evaluate import describe_model, evaluate_models, identity_of_model, save_record
from cse.stages.open_model import BackboneOf
from cse.tune.driver import alone, train_all
from cse.tune.outcome import FINISHED, Sweep, TrialRecord, Tried, spread
from cse.tune.spaces import BARE, SEED, Setting
from cse.tune.trial import Job

CHOICES, MEASURED = "choices", "measured"  # names of records
RECORD = "record"  # folder of a model's test scores
MEASURES = ("sts", "cxc", "tasks")
_OTHERWISE = "restore it, or delete it and choose again"


def confirm_best(sweep: Sweep, job: Job, *, prepared: Path, count: int, seeds: int, against: str = "") -> TrialRecord:
    """Train the best settings with several seeds, choose, measure, compare, and print what came out.

    Args:
        seeds: of each, counted up from ``train.seed``.
        against: setting to compare with; empty: the bare backbone.

    Returns:
        The first trial of the best setting by dev score.
    """
    first = {tried.first.name: tried.first for tried in sweep.ranked[:count] if tried.state == FINISHED}
    if against not in ("", BARE, *first):
        raise CseError(
            f"--against: {against!r} is none of the best {len(first)}{nearest(against, first)}: {', '.join(first)}"
        )
    with alone(job):
        wanted = [Setting(name, {k: v for k, v in trial.config.items() if k != SEED}) for name, trial in first.items()]
        trained = train_all(job, wanted, seeds, "confirm")
        for trial in trained:
            if trial.state != FINISHED:
                click.echo(f"{trial.name}, seed {trial.seed}: {trial.reason}; the setting is left out", err=True)
        tried = [Tried(tuple(trial for trial in trained if trial.name == name)) for name in first]
        chosen = sorted((one for one in tried if one.state == FINISHED), key=lambda one: -one.mean)
        if not chosen:
            raise CseError(f"tune: no setting could be trained with {seeds} seeds: {trained[0].reason}")
        choice = _choose(job.folder, {one.first.name: [round(score, 3) for score in one.scores] for one in chosen})
        systems = _measure(job, chosen, prepared)
    blind = "no test set was open" if choice["blind"] else "not blind, since a test set had been opened before"
    click.echo(f"chosen {choice['when']} UTC: {', '.join(choice['dev'])}; {blind}")
    click.echo(format_rows(_table(systems, chosen), "text"), nl=False)
    for before, after, results in comparisons(systems, against or BARE):
        click.echo(f"\n{after.name} ({after.runs}) against {before.name} ({before.runs})")
        click.echo(format_rows(compared_rows([one for one in results if one.main]), "text"), nl=False)
    return first[chosen[0].first.name]


def _choose(folder: Path, dev: dict[str, list[float]]) -> dict[str, Any]:
    """Put a choice on record, unless it is the last one there.

    Returns:
        ``dev``: scores of the seeds by setting, the best first; ``when``; ``blind``: whether no test set had been
        opened before.
    """
    ledger = Ledger(folder, _OTHERWISE)
    record = ledger.read(CHOICES)
    made = [] if record is None else record.result
    if not made or made[-1]["dev"] != dev:
        opened = any(folder.glob(f"trials/*/{RECORD}")) or (folder / BARE / RECORD).exists()
        made = [*made, {"dev": dev, "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "blind": not opened}]
        ledger.write(CHOICES, RunRecord({}, made))
    choice: dict[str, Any] = made[-1]
    return choice


def _measure(job: Job, chosen: Sequence[Tried], prepared: Path) -> list[System]:
    """Measure the bare backbone and every training that was chosen, unless that was done."""
    bare = job.folder / BARE
    models: list[tuple[Path, str, str | BackboneOf]] = [(bare, BARE, BackboneOf(job.settings.backbone))]
    for trial in (trial for one in chosen for trial in one.trials):
        models.append((Path(trial.folder), trial.name, f"{trial.folder}/checkpoint"))
    suite, device = _suite(prepared), job.settings.evaluation.device
    content = content_of_suite(suite)
    for folder, name, model in models:
        of = {"the model": [identity_of_model(model), describe_model(model)], "the test items": content}
        work = partial(_measure_model, folder, name, model, suite, device)
        Ledger(folder).run(MEASURED, work, of=of, makes=[folder / RECORD])
    folders = {BARE: [bare]} | {one.first.name: [Path(trial.folder) for trial in one.trials] for one in chosen}
    return [System(name, tuple(read_record(one / RECORD) for one in each)) for name, each in folders.items()]


def _suite(prepared: Path) -> SuiteData:
    """Return what is tested: similarity tasks, CxC-STS, own tasks, of which the choice has seen nothing."""
    suite = open_suite(PreparedData(prepared))
    return replace(suite, test=[task for task in suite.test if isinstance(task, ScoredPairs | CaptionPairs)])


def _measure_model(folder: Path, name: str, model: str | BackboneOf, suite: SuiteData, device: str) -> None:
    click.echo(f"measuring {name}", err=True)
    found = evaluate_models({name: model}, suite, measures=MEASURES, device=device, progress=False)
    with publish_folder(folder / RECORD, Kind.RECORD) as record:
        save_record(record, name, model, found[name], device)


def _table(systems: Sequence[System], chosen: Sequence[Tried]) -> list[list[str]]:
    """Return scores as text with a header: dev, then test, means over seeds with half of the 95 % interval."""
    scores = [[_figures(record) for record in system.records] for system in systems]
    dev = ["", *(spread(one.scores) for one in chosen)]
    body = [
        [system.name, str(len(found)), seen, *(_with_interval([one[name] for one in found]) for name in scores[0][0])]
        for system, found, seen in zip(systems, scores, dev, strict=True)
    ]
    return [["setting", "seeds", "dev", *scores[0][0]], *body]


def _figures(record: Record) -> dict[str, float]:
    """Return the test scores of a record, main measures alone: similarity tasks, CxC, own tasks."""
    found, scores = {}, record.scores
    average = next((name for name in scores if name.startswith(("Avg.", "mean of "))), None)  # one, if any was scored
    if average is not None:
        found["STS"] = float(scores[average])
    if scores.get("cxc"):
        found["CxC"] = float(scores["cxc"]["all_pairs"])
    own = scores.get("tasks", {})
    return found | {f"{name} {task['main']}": float(task["values"][task["main"]]) for name, task in own.items()}


def _with_interval(values: Sequence[float]) -> str:
    """Return the mean and half the width of its 95 % confidence interval, if there are several values."""
    return f"{statistics.fmean(values):.2f}" + (f" ± {half_width_of_mean(values):.2f}" if len(values) > 1 else "")
