"""Measure what was chosen on the test sets, side by side, and compare it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from scipy.stats import t as student

from cse.bench.worker import work_through
from cse.data.store import PreparedData
from cse.errors import CseError
from cse.evaluation.comparison import Compared
from cse.evaluation.record import read_record
from cse.evaluation.suite import content_of_suite, evaluate_suite
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System
from cse.settings import Settings
from cse.stages.evaluate import describe_model, identity_of_model, save_record
from cse.stages.open_model import BackboneOf
from cse.study.choice import choices
from cse.study.measures import columns, suite_for_test
from cse.study.plan import BARE
from cse.study.run import Folders, ready
from cse.study.table import RECORD, lines_of, read_rows
from cse.training.encoder import bare_of

_LEVEL = 0.95


def measure_model(
    prepared: Path, settings: Settings, models: Mapping[str, tuple[Path, str | BackboneOf]], name: str
) -> None:
    """Measure a model on the test sets.

    Args:
        models: folder to write a record into and the checkpoint, or the backbone of the settings, by name.
    """
    folder, model = models[name]
    loaded = SentenceEncoder.load(model) if isinstance(model, str) else bare_of(settings.backbone)
    encoder, device = ready(loaded, settings)
    found = evaluate_suite(
        encoder,
        suite_for_test(PreparedData(prepared)),
        measures=("sts", "cxc", "tasks"),
        device=device,
    )
    with publish_folder(folder / RECORD, Kind.RECORD) as record:
        save_record(record, name, model, found, device.type)


def measure_chosen(folders: Folders, settings: Settings, *, at_once: int | None = None) -> list[System]:
    """Measure the bare backbone and every training of the last choice on the test sets, unless that was done.

    Args:
        settings: of a training of the round, for the evaluation data.
        at_once: how many to measure side by side; None: one for each CPU, or for each GPU if there are any.

    Returns:
        The bare backbone, then the chosen settings, one record per seed.
    """
    made = choices(folders)
    if not made:
        raise CseError(f"{folders.folder}: choose first (`cse study choose`); the test sets stay closed until then")
    chosen = made[-1]
    lines = {line.setting: line for line in lines_of(read_rows(folders.folder, chosen.round))}
    models: dict[str, tuple[Path, str | BackboneOf]] = {
        BARE: (folders.run("", BARE).folder, BackboneOf(settings.backbone))
    }
    for name in chosen.settings:
        for row in lines[name].rows:
            own = folders.run(chosen.round, f"{name}-{row.seed}")
            models[own.folder.name] = own.folder, str(own.checkpoint)
    prepared = folders.data(settings).prepared
    if not prepared.is_dir():
        raise CseError(
            f"{folders.folder}: the files or settings of its data changed since round {chosen.round} was trained; "
            "undo that, or give the study another --out"
        )
    content = content_of_suite(suite_for_test(PreparedData(prepared)))
    todo = [name for name, (folder, model) in models.items() if not _measured(name, folder / RECORD, model, content)]
    failed = [
        f"{name}: {reason}"
        for name, reason in work_through(
            partial(measure_model, prepared, settings, models), todo, at_once=at_once, unit="model", done="measured"
        )
        if reason
    ]
    if failed:
        raise CseError(f"{failed[0]}; run the same command again, what was measured is kept")
    systems = [System(BARE, (read_record(models[BARE][0] / RECORD),))]
    for name in chosen.settings:
        trained = [models[f"{name}-{row.seed}"][0] for row in lines[name].rows]
        systems.append(System(name, tuple(read_record(folder / RECORD) for folder in trained)))
    return systems


def _measured(name: str, record: Path, model: str | BackboneOf, content: Mapping[str, str]) -> bool:
    """Return whether a record is that of a model on the test sets as they are; say why if it is of others."""
    if not record.is_dir():
        return False
    found = read_record(record)
    if found.content == content and (found.identity, found.model) == (identity_of_model(model), describe_model(model)):
        return True
    what = "another model" if found.content == content else "other test items"
    click.echo(f"{name}: {record} is of {what}; measuring again", err=True)
    return False


def result_table(systems: Sequence[System]) -> list[list[str]]:
    """Return test scores as text with a header: mean over seeds and half of its 95 % interval (Student's t)."""
    scores = [[columns(record.scores) for record in system.records] for system in systems]
    names = list(scores[0][0])
    body = [
        [system.name, str(len(found)), *(with_interval([one[name] for one in found]) for name in names)]
        for system, found in zip(systems, scores, strict=True)
    ]
    return [["setting", "seeds", *names], *body]


def compared(systems: Sequence[System], baseline: str) -> list[tuple[System, System, list[Compared]]]:
    """Return paired comparisons of every system with a baseline, main measures alone."""
    found = comparisons(systems, baseline)
    return [(before, after, [one for one in results if one.main]) for before, after, results in found]


def with_interval(values: Sequence[float]) -> str:
    """Return the mean and half the width of its 95 % confidence interval, if there are several values."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    half = student.ppf((1 + _LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.2f} ± {half:.2f}"
