"""Confirm a sweep: train its best settings with several seeds, write the choice down, then open the test sets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
from scipy.stats import t as student

from cse.bench.ledger import Ledger, RunRecord
from cse.bench.worker import work_through
from cse.data.store import PreparedData
from cse.data.suite import SuiteData, open_suite
from cse.data.tasks.kinds import CaptionPairs, ScoredPairs, Task
from cse.errors import CseError, nearest
from cse.evaluation.comparison import compared_rows
from cse.evaluation.record import Record, read_record
from cse.evaluation.suite import content_of_suite, evaluate_suite
from cse.evaluation.table import format_rows
from cse.model.device import choose_bf16, choose_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System
from cse.settings import Settings
from cse.stages.evaluate import describe_model, identity_of_model, save_record
from cse.stages.open_model import BackboneOf, bare_of
from cse.tune.driver import alone, runs_of, train_runs
from cse.tune.job import Job
from cse.tune.outcome import FINISHED, Sweep, TrialRecord, Tried, spread
from cse.tune.spaces import BARE, SEED, Setting

CHOICES = "choices"  # name of the record
RECORD = "record"  # folder of a model's test scores
_LEVEL = 0.95
_OTHERWISE = "restore it, or delete it and choose again"


@dataclass(frozen=True)
class Choice:
    """Settings that their dev scores chose, the best first, and what was known then.

    Attributes:
        dev: score of each seed, by setting.
        blind: whether no test set had been opened before.
    """

    dev: dict[str, list[float]]
    when: str
    blind: bool


def confirm_best(sweep: Sweep, job: Job, *, prepared: Path, count: int, seeds: int, against: str = "") -> TrialRecord:
    """Train the best settings with several seeds, choose, measure, compare, and print what came out.

    Args:
        prepared: folder with the test sets.
        count: of settings.
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
        trained = train_runs(job, runs_of(wanted, seeds, job), "confirm")
        chosen = [Tried(tuple(trial for trial in trained if trial.name == name)) for name in first]
        for trial in trained:
            if trial.state != FINISHED:
                click.echo(f"{trial.name}, seed {trial.seed}: {trial.reason}; the setting is left out", err=True)
        chosen = sorted((one for one in chosen if one.state == FINISHED), key=lambda one: -one.mean)
        if not chosen:
            raise CseError(f"tune: no setting could be trained with {seeds} seeds: {trained[0].reason}")
        choice = _choose(job.folder, chosen)
        systems = _measure(job, chosen, prepared)
    blind = "no test set was open" if choice.blind else "not blind, since a test set had been opened before"
    click.echo(f"chosen {choice.when} UTC: {', '.join(choice.dev)}; {blind}")
    click.echo(format_rows(_table(systems, chosen), "text"), nl=False)
    for before, after, results in comparisons(systems, against or BARE):
        click.echo(f"\n{after.name} ({after.runs}) against {before.name} ({before.runs})")
        click.echo(format_rows(compared_rows([one for one in results if one.main]), "text"), nl=False)
    return first[chosen[0].first.name]


def choices(folder: Path) -> list[Choice]:
    """Return the choices on record in a sweep's folder, the last one at the end."""
    record = Ledger(folder, _OTHERWISE).read(CHOICES)
    return [] if record is None else [Choice(**each) for each in record.result]


def _choose(folder: Path, chosen: Sequence[Tried]) -> Choice:
    """Put a choice on record, unless it is the last one there."""
    dev = {one.first.name: [round(score, 3) for score in one.scores] for one in chosen}
    made = choices(folder)
    if made and made[-1].dev == dev:
        return made[-1]
    opened = any(folder.glob(f"trials/*/{RECORD}")) or (folder / BARE / RECORD).exists()
    choice = Choice(dev, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", not opened)
    Ledger(folder, _OTHERWISE).write(CHOICES, RunRecord({}, [asdict(each) for each in (*made, choice)]))
    return choice


def suite_for_test(prepared: Path) -> SuiteData:
    """Return what is tested: similarity tasks, CxC-STS, own tasks, of which the choice has seen nothing."""
    suite = open_suite(PreparedData(prepared))
    test: list[Task] = [task for task in suite.test if isinstance(task, ScoredPairs | CaptionPairs)]
    return replace(suite, test=test)


def measure_model(
    prepared: Path, settings: Settings, models: Mapping[str, tuple[Path, str, str | BackboneOf]], called: str
) -> None:
    """Measure a model on the test sets, in bfloat16 where training is: faster, and scores move by hundredths.

    Args:
        models: folder to write a record into, name, and checkpoint or backbone.
    """
    folder, name, model = models[called]
    encoder = SentenceEncoder.load(model) if isinstance(model, str) else bare_of(settings.backbone)
    device = choose_device(settings.evaluation.device)
    encoder.to(device).precision = "bf16" if choose_bf16(settings.train.precision, device) else "fp32"
    found = evaluate_suite(encoder, suite_for_test(prepared), measures=("sts", "cxc", "tasks"), device=device)
    with publish_folder(folder / RECORD, Kind.RECORD) as record:
        save_record(record, name, model, found, device.type)


def _measure(job: Job, chosen: Sequence[Tried], prepared: Path) -> list[System]:
    """Measure the bare backbone and every training that was chosen, unless that was done."""
    bare = BackboneOf(job.settings.backbone)
    models: dict[str, tuple[Path, str, str | BackboneOf]] = {BARE: (job.folder / BARE, BARE, bare)}
    for trial in (trial for one in chosen for trial in one.trials):
        folder = Path(trial.folder)
        models[f"{trial.name}, seed {trial.seed}"] = folder, trial.name, str(folder / "checkpoint")
    content = content_of_suite(suite_for_test(prepared))
    todo = [called for called, model in models.items() if not _measured(called, model, content)]
    do = partial(measure_model, prepared.resolve(), job.settings, models)
    ended = work_through(do, todo, at_once=job.settings.tune.concurrent, unit="model", done="measured")
    failed = [f"{called}: {reason}" for called, reason in ended if reason]
    if failed:
        raise CseError(f"{failed[0]}; run the same command again, what was measured is kept")
    systems = [System(BARE, (read_record(job.folder / BARE / RECORD),))]
    for one in chosen:
        systems.append(System(one.first.name, tuple(read_record(Path(trial.folder) / RECORD) for trial in one.trials)))
    return systems


def _measured(called: str, model: tuple[Path, str, str | BackboneOf], content: Mapping[str, str]) -> bool:
    """Return whether a record is that of a model on the test sets as they are; say why if it is of others."""
    folder, _, opened = model
    if not (folder / RECORD).is_dir():
        return False
    found = read_record(folder / RECORD)
    if found.content == content and (found.identity, found.model) == (
        identity_of_model(opened),
        describe_model(opened),
    ):
        return True
    what = "another model" if found.content == content else "other test items"
    click.echo(f"{called}: {folder / RECORD} is of {what}; measuring again", err=True)
    return False


def _table(systems: Sequence[System], chosen: Sequence[Tried]) -> list[list[str]]:
    """Return scores as text with a header: dev, then test, means over seeds with half of the 95 % interval."""
    scores = [[figures(record) for record in system.records] for system in systems]
    names = list(scores[0][0])
    dev = ["", *(spread(one.scores) for one in chosen)]
    body = [
        [system.name, str(len(found)), seen, *(_with_interval([one[name] for one in found]) for name in names)]
        for system, found, seen in zip(systems, scores, dev, strict=True)
    ]
    return [["setting", "seeds", "dev", *names], *body]


def figures(record: Record) -> dict[str, float]:
    """Return the test scores of a record, main measures alone: similarity tasks, CxC, own tasks."""
    found, scores = {}, record.scores
    average = next((name for name in scores if name.startswith(("Avg.", "mean of "))), None)  # one, if any was scored
    if average is not None and "all" in scores[average]:
        found["STS"] = float(scores[average]["all"])
    if scores.get("cxc"):
        found["CxC"] = float(scores["cxc"]["all_pairs"])
    own = scores.get("tasks", {})
    return found | {f"{name} {task['main']}": float(task["values"][task["main"]]) for name, task in own.items()}


def _with_interval(values: Sequence[float]) -> str:
    """Return the mean and half the width of its 95 % confidence interval (Student's t), if there are several values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = student.ppf((1 + _LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.2f} ± {half:.2f}"
