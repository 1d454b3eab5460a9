"""Choose by dev scores, and only then open the test sets."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
from scipy.stats import t as student
from tqdm import tqdm

from cse.data.store import PreparedData
from cse.errors import CseError, nearest
from cse.evaluation.compared import Compared
from cse.evaluation.record import read_record
from cse.outputs import Kind, publish_file, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System
from cse.settings import Settings
from cse.stages.open_model import evaluate_models, save_record
from cse.study.ledger import Line, lines_of, read_rows
from cse.study.measures import columns, suite_for_test
from cse.study.plan import BARE
from cse.study.run import Place

CHOICE_FILE = "choices.json"
_LEVEL = 0.95


@dataclass(frozen=True)
class Choice:
    """Settings that were chosen, and what was known then.

    Attributes:
        round: whose trainings are meant.
        settings: names.
        dev: mean dev scores by setting and column.
        when: time in UTC.
        blind: whether no test set had been opened before.
    """

    round: str
    settings: list[str]
    dev: dict[str, dict[str, float]]
    when: str
    blind: bool


def choose(place: Place, round_name: str, names: Sequence[str]) -> Choice:
    """Record a choice; the last one counts, and earlier ones stay on record.

    Raises:
        CseError: a setting that was not trained in this round.
    """
    lines = {line.setting: line for line in lines_of(read_rows(place.folder, round_name)) if line.rows}
    for name in names:
        if name not in lines:
            raise CseError(f"setting {name}: not trained in round {round_name}{nearest(name, lines)}")
    dev = {name: _means(lines[name]) for name in names}
    made = Choice(round_name, list(names), dev, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", not _opened(place))
    with publish_file(place.folder / CHOICE_FILE) as target:
        target.write_text(json.dumps([*map(asdict, choices(place)), asdict(made)], indent=2) + "\n", encoding="utf-8")
    return made


def choices(place: Place) -> list[Choice]:
    """Return the choices that were recorded, the last one at the end."""
    path = place.folder / CHOICE_FILE
    return [Choice(**each) for each in json.loads(path.read_text(encoding="utf-8"))] if path.is_file() else []


def measure_chosen(place: Place, settings: Settings) -> list[System]:
    """Measure the bare backbone and every training of the last choice on the test sets, unless that was done.

    Args:
        place: of the study.
        settings: of a training of the round, for the evaluation data.

    Returns:
        The bare backbone, then the chosen settings, one record per seed.

    Raises:
        CseError: nothing was chosen.
    """
    made = choices(place)
    if not made:
        raise CseError(f"{place.folder}: choose first (`cse study choose`); the test sets stay closed until then")
    chosen = made[-1]
    lines = {line.setting: line for line in lines_of(read_rows(place.folder, chosen.round))}
    models: dict[Path, tuple[str, str]] = {place.run("", BARE): (BARE, settings.backbone.name)}
    for name in chosen.settings:
        for row in lines[name].rows:
            folder = place.run(chosen.round, f"{name}-{row.seed}")
            models[folder] = f"{name}-{row.seed}", str(folder / "checkpoint")
    todo = {folder: model for folder, model in models.items() if not (folder / "record").is_dir()}
    if todo:
        suite = suite_for_test(PreparedData(place.data(settings) / "prepared"))
        options = settings.evaluation
        for folder, (name, model) in tqdm(todo.items(), unit="model", desc="test", disable=not sys.stderr.isatty()):
            results = evaluate_models(
                {name: model},
                suite,
                measures=("sts", "cxc", "tasks"),
                device=options.device,
                batch_size=options.batch_size,
                progress=False,
            )
            with publish_folder(folder / "record", Kind.RECORD) as record:
                save_record(record, name, model, results[name], options.device)
    systems = [System(BARE, (read_record(place.run("", BARE) / "record"),))]
    for name in chosen.settings:
        folders = [place.run(chosen.round, f"{name}-{row.seed}") / "record" for row in lines[name].rows]
        systems.append(System(name, tuple(read_record(folder) for folder in folders)))
    return systems


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


def say_choice(made: Choice) -> None:
    """Print what was chosen and whether it was blind."""
    blind = "no test set was open" if made.blind else "not blind, since a test set had been opened before"
    click.echo(f"{made.when} UTC, round {made.round}: {', '.join(made.settings)}; {blind}")


def _means(line: Line) -> dict[str, float]:
    return {name: round(statistics.fmean(line.over_seeds(name)), 3) for name in line.rows[0].dev}


def _opened(place: Place) -> bool:
    return any((place.folder / "runs").glob("**/record"))
