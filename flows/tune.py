"""``cse tune``: search for better settings, keep finished trials as DVC experiments, promote the best."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from cse.cli.options import parse_overrides, set_option
from cse.cli.sweep import sweep_and_confirm, trial_options
from cse.errors import CseError
from cse.settings import load_settings
from cse.settings.document import write_values, yaml_value
from cse.settings.load import PARAMS_FILE, flatten
from cse.stages.common import CORRUPTED, MINED, PREPARED, SCRATCH
from cse.tune.outcome import to_promote
from cse.tune.spaces import about, read_space, space_names
from flows.processes import HINTS, CommandError, explain, run_dvc
from flows.repository import paths_left_behind, project_folder
from flows.sweep import keep_trials, stages_before, sweep_settings
from flows.workspace import Workspace, throwaway_clone


@click.command(
    epilog="\b\nSpaces:\n"
    + "".join(f"  {name:13} {about(name)}\n" for name in space_names())
    + "\b\nExamples:\n  cse tune\n  cse tune --space promcse\n"
    "  cse tune --over train.learning_rate=1e-3..5e-2 --over prompt.length=[8,12,16] --trials 20\n"
    "  cse tune --space margin --confirm 10 --seeds 3\n"
    "  cse tune --space mine.yaml --only prompts --only lora --confirm 2 --against lora\n"
    "  cse tune --promote && dvc repro\n  dvc exp show --only-changed"
)
@click.option("--space", metavar="SPACE", help="A space below, or a YAML file; default: tune.space.")
@click.option("--over", multiple=True, metavar="KEY=VALUES", help="Search KEY: [V, ...], or LOW..HIGH.")
@click.option("--trials", type=click.IntRange(min=1), help="Number of settings to try; default: tune.trials.")
@trial_options
@set_option
@click.option("--promote", is_flag=True, help="Write the best trial's values to params.yaml.")
@click.option("--experiments/--no-experiments", default=True, help="Save finished trials as DVC experiments, or not.")
def tune(
    space: str | None, over: Sequence[str], trials: int | None, names: Sequence[str], seeds: int | None, confirm: int,
    against: str, overrides: Sequence[str], promote: bool, experiments: bool,
) -> None:  # fmt: skip
    """Search for settings that score better on the dev pairs.

    Starts from params.yaml, which stays untouched without --promote. Trials never see a test set; --confirm opens it
    for the best, once their choice is on record. To resume a killed sweep, run the same command again; what is on
    record is not trained twice.
    """
    root = project_folder("cse tune")
    around = parse_overrides(overrides)
    wanted: dict[str, Any] = {"tune.over": list(over)} if over else {}
    if space is not None:
        if over:
            raise CseError("--space and --over: give only one of the two")
        wanted |= {"tune.space": space, "tune.over": []}
    if trials is not None:
        wanted["tune.trials"] = trials
    shared = read_space(load_settings(PARAMS_FILE, around | wanted, any_view=True).tune).set
    around = shared | around
    settings = sweep_settings(PARAMS_FILE, around | wanted, names)
    changes = around | paths_left_behind(settings, root)
    with throwaway_clone(root, f"tune-{os.getpid()}") as place:
        write_values(place.folder / PARAMS_FILE, changes)
        for stage in stages_before(place):
            _run(stage, place)
        sweep, best = sweep_and_confirm(
            load_settings(place.folder / PARAMS_FILE, wanted),
            prepared=place.folder / PREPARED,
            mined=place.folder / MINED,
            corrupted=place.folder / CORRUPTED,
            scratch=root / SCRATCH,
            names=names, seeds=seeds, confirm=confirm, against=against,
        )  # fmt: skip
        if experiments:
            name = f"tune-{sweep.folder.name}"
            kept = keep_trials(place, sweep, best, name, lambda line: click.echo(line, err=True))
            click.echo(f"experiments: list them with `dvc exp show`, apply the best with `dvc exp apply {kept[-1]}`")
    if promote:
        _promote(*to_promote(around | best.values, sweep.keys))
    else:
        click.echo("to write the best values to params.yaml, run `cse tune --promote` with the same options")


def _promote(values: Mapping[str, Any], left_out: Mapping[str, Any]) -> None:
    """Write the best values to params.yaml, show the difference, and say whether its training can be restored."""
    changed = write_values(PARAMS_FILE, values)
    for key, (before, after) in changed.items():
        click.echo(click.style(f"- {key}: {yaml_value(before)}", fg="red"))
        click.echo(click.style(f"+ {key}: {yaml_value(after)}", fg="green"))
    click.echo(f"{PARAMS_FILE}: {len(changed)} values changed")
    now = flatten(load_settings(PARAMS_FILE).model_dump(mode="json"))
    other = {key: value for key, value in left_out.items() if not key.startswith("tune.") and value != now[key]}
    if not other:
        click.echo("`dvc repro` restores the best trial's training and brings the rest up to date")
        return
    was = [f"{key} {yaml_value(value)} ({PARAMS_FILE}: {yaml_value(now[key])})" for key, value in other.items()]
    click.echo(f"not promoted, because they belong to the sweep or the machine: {', '.join(was)}")
    click.echo("so `dvc repro` trains again; its score may differ from the trial's")


def _run(stage: str, place: Workspace) -> None:
    """Bring a stage up to date that the sweep needs."""
    try:
        run_dvc(
            ["repro", "--single-item", stage],
            place.folder,
            lambda line: None if HINTS.match(line) or "didn't change" in line else click.echo(line, err=True),
            place.environment,
        )
    except CommandError as error:
        raise CseError(explain(stage, error.code, error.last_lines)[0]) from None
