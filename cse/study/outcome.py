"""Measure what was chosen on the test sets, side by side, and compare it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import torch
from scipy.stats import t as student
from tqdm import tqdm

from cse.data.store import PreparedData
from cse.errors import CseError, error_line, one_line
from cse.evaluation.compared import Compared
from cse.evaluation.record import read_record
from cse.evaluation.suite import content_of_suite, evaluate_suite
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System
from cse.scale.side_by_side import side_by_side
from cse.settings import Settings
from cse.stages.evaluate_models import describe_model, identity_of_model, save_record
from cse.stages.open_backbone import bare_of
from cse.stages.open_model import BackboneOf
from cse.study.choice import choices
from cse.study.ledger import RECORD, lines_of, read_rows
from cse.study.measures import columns, suite_for_test
from cse.study.plan import BARE
from cse.study.run import Place, ready

_LEVEL = 0.95


class TestWorker:
    """Measures one model after the other on the test sets in its own process.

    Args:
        prepared: folder of the evaluation data.
        settings: device, precision and batch size.
        models: folder to write a record into and the checkpoint, or the backbone of the settings, by name.
        threads: CPU threads to use.
    """

    __test__ = False  # no test of pytest's

    def __init__(
        self, prepared: Path, settings: Settings, models: Mapping[str, tuple[Path, str | BackboneOf]], threads: int
    ) -> None:
        torch.set_num_threads(threads)
        self.settings, self.models = settings, models
        self.suite = suite_for_test(PreparedData(prepared))

    def run(self, name: str) -> str:
        """Measure a model and return why that failed, empty if it did not."""
        folder, model = self.models[name]
        try:
            loaded = SentenceEncoder.load(model) if isinstance(model, str) else bare_of(self.settings.backbone).load()
            encoder, device = ready(loaded, self.settings)
            found = evaluate_suite(
                encoder,
                self.suite,
                measures=("sts", "cxc", "tasks"),
                batch_size=self.settings.evaluation.batch_size,
                device=device,
            )
            with publish_folder(folder / RECORD, Kind.RECORD) as record:
                save_record(record, name, model, found, device.type)
        except (CseError, OSError) as error:
            return error_line(error)
        except Exception as error:
            return one_line(f"{type(error).__name__}: {error}")[:300]
        return ""


def measure_chosen(place: Place, settings: Settings, *, at_once: int | None = None) -> list[System]:
    """Measure the bare backbone and every training of the last choice on the test sets, unless that was done.

    Args:
        place: of the study.
        settings: of a training of the round, for the evaluation data.
        at_once: how many to measure side by side; None: one for each CPU, or for each GPU if there are any.

    Returns:
        The bare backbone, then the chosen settings, one record per seed.

    Raises:
        CseError: nothing was chosen, or a model could not be measured.
    """
    made = choices(place)
    if not made:
        raise CseError(f"{place.folder}: choose first (`cse study choose`); the test sets stay closed until then")
    chosen = made[-1]
    lines = {line.setting: line for line in lines_of(read_rows(place.folder, chosen.round))}
    models: dict[str, tuple[Path, str | BackboneOf]] = {
        BARE: (place.run("", BARE), BackboneOf(bare_of(settings.backbone)))
    }
    for name in chosen.settings:
        for row in lines[name].rows:
            folder = place.run(chosen.round, f"{name}-{row.seed}")
            models[folder.name] = folder, str(folder / "checkpoint")
    prepared = place.data(settings) / "prepared"
    if not prepared.is_dir():
        raise CseError(
            f"{place.folder}: the files or settings of its data changed since round {chosen.round} was trained; "
            "undo that, or give the study another --out"
        )
    content = content_of_suite(suite_for_test(PreparedData(prepared)))
    todo = [name for name, (folder, model) in models.items() if not _measured(name, folder / RECORD, model, content)]
    failed = ""
    if todo:
        with tqdm(total=len(todo), unit="model", desc="test", disable=not sys.stderr.isatty()) as bar:
            for ended in side_by_side(
                TestWorker, lambda threads: (prepared, settings, models, threads), todo, at_once=at_once
            ):
                reason = ended.lost or ended.result
                failed = failed or (f"{ended.name}: {reason}" if reason else "")
                bar.update()
                bar.write(f"{ended.name}: {reason or 'measured'}", file=sys.stderr)
    if failed:
        raise CseError(f"{failed}; run the same command again, what was measured is kept")
    systems = [System(BARE, (read_record(models[BARE][0] / RECORD),))]
    for name in chosen.settings:
        folders = [models[f"{name}-{row.seed}"][0] for row in lines[name].rows]
        systems.append(System(name, tuple(read_record(folder / RECORD) for folder in folders)))
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
