"""``cse tune``: search for better settings, and promote the best.

Trials run outside the repository. Only the driver hands the best one's results to DVC, in a throwaway clone: as outputs
of stage ``train``, so that the pipeline restores it instead of training again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import chdir
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import click

from cse.cli.options import parse_overrides, set_option
from cse.errors import CseError
from cse.settings import Settings, load_settings
from cse.settings.document import write_values, yaml_value
from cse.settings.load import PARAMS_FILE, flatten
from cse.stages.common import CHECKPOINT, METRICS, PLOTS, PREPARED, SCRATCH
from cse.tune.outcome import TRIALS, Sweep, TrialRecord, describe, draw, to_promote
from cse.tune.spaces import build_space, only, read_space, shipped
from flows.processes import HINTS, CommandError, explain, last_after, run_dvc
from flows.repository import dvc_errors, paths_left_behind, project_folder, stages_in_order
from flows.workspace import Workspace, throwaway_clone

STAGE = "train"  # what a trial is


def sweep_and_confirm(
    settings: Settings,
    prepared: Path,
    *,
    scratch: Path,
    names: Sequence[str],
    seeds: int | None,
    confirm: int,
    against: str,
) -> tuple[Sweep, TrialRecord]:
    """Run or resume a sweep, print what came out, and return it with the trial to promote.

    Args:
        against: a setting to compare the confirmed ones with; empty: the bare backbone.
    """
    from cse.tune.driver import run_sweep

    if against and not confirm:
        raise CseError("--against: names what confirmed settings are compared with; give --confirm too")
    seeds = seeds or (3 if confirm else 1)
    sweep, job = run_sweep(settings, prepared, scratch=scratch, names=names, seeds=seeds, confirm=confirm)
    click.echo(describe(sweep))
    best = sweep.best
    if confirm:
        from cse.tune.confirm import confirm_best

        best = confirm_best(sweep, job, prepared=prepared, count=confirm, seeds=seeds, against=against)
    for path in (sweep.folder / TRIALS, *draw(sweep)):
        click.echo(str(path))
    return sweep, best


@click.command(
    epilog="\b\nSpaces:\n"
    + "".join(f"  {name:13} {space.about}\n" for name, space in shipped().items())
    + "\b\nExamples:\n  cse tune\n  cse tune --space promcse\n"
    "  cse tune --over train.learning_rate=1e-3..5e-2 --over prompt.length=[8,12,16] --trials 20\n"
    "  cse tune --space margin --confirm 10 --seeds 3\n"
    "  cse tune --space mine.yaml --only prompts --only lora --confirm 2 --against lora\n"
    "  cse tune --promote && dvc repro"
)
@click.option("--space", metavar="SPACE", help="A space below, or a YAML file; default: tune.space.")
@click.option("--over", multiple=True, metavar="KEY=VALUES", help="Search KEY: [V, ...], or LOW..HIGH.")
@click.option("--trials", type=click.IntRange(min=1), help="Number of settings to try; default: tune.trials.")
@click.option("--only", "names", multiple=True, metavar="SETTING", help="Try this named setting alone.")
@click.option(
    "--seeds", metavar="S", type=click.IntRange(min=1), help="Seeds per setting, from train.seed on; default: 1, to "
    "confirm 3.",
)  # fmt: skip
@click.option(
    "--confirm", metavar="K", type=click.IntRange(min=0), default=0,
    help="Train the best K with --seeds, choose, then open the test sets.",
)  # fmt: skip
@click.option("--against", default="", metavar="SETTING", help="--confirm: compare with it, not the backbone.")
@set_option
@click.option("--promote", is_flag=True, help="Write the best trial's values to params.yaml.")
def tune(
    space: str | None, over: Sequence[str], trials: int | None, names: Sequence[str], seeds: int | None, confirm: int,
    against: str, overrides: Sequence[str], promote: bool,
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
    settings = load_settings(PARAMS_FILE, around | wanted)
    only(build_space(settings), names)  # refuses a wrong space or name before anything is prepared
    changes = around | paths_left_behind(settings, root)
    for package in ("ray", "optuna"):  # before anything is prepared
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    with throwaway_clone(root, f"tune-{os.getpid()}") as place:
        write_values(place.folder / PARAMS_FILE, changes)
        Thread(target=import_module, args=("cse.tune.driver",), daemon=True).start()  # seconds, while stages run
        stages = stages_in_order(place.folder)
        _reproduce(stages[: stages.index(STAGE)], place)
        sweep, best = sweep_and_confirm(
            load_settings(place.folder / PARAMS_FILE, wanted),
            place.folder / PREPARED,
            scratch=root / SCRATCH,
            names=names, seeds=seeds, confirm=confirm, against=against,
        )  # fmt: skip
        _take_trial(place, best)
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


def _reproduce(stages: Sequence[str], place: Workspace) -> None:
    """Bring the stages up to date that the sweep needs."""
    try:
        run_dvc(
            ["repro", *stages],
            place.folder,
            lambda line: None if HINTS.match(line) or "didn't change" in line else click.echo(line, err=True),
            place.environment,
        )
    except CommandError as error:
        failed = last_after("ERROR: failed to reproduce '", error.last_lines).partition("'")[0]
        raise CseError(explain(failed or stages[-1], error.code, error.last_lines)[0]) from None


def _take_trial(place: Workspace, trial: TrialRecord) -> None:
    """Make a trial the result of stage ``train`` in a clone: its settings, its outputs, and DVC's note of both."""
    from dvc.repo import Repo

    assert not place.in_place, "outputs of a clone alone are removed"  # noqa: S101
    logging.getLogger("dvc").setLevel(logging.WARNING)  # it reports each change of a lock file
    folder = Path(trial.folder)
    write_values(place.folder / PARAMS_FILE, trial.values)
    for name, out in (("checkpoint", CHECKPOINT), ("plots", PLOTS / "train"), ("train.json", METRICS / "train.json")):
        target = place.folder / out
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (folder / name).is_dir() else shutil.copyfile)(folder / name, target)
    # DVC looks for the stage where the process is
    with dvc_errors(f"trial {trial.number}: DVC did not take its results"), chdir(place.folder), Repo() as repo:
        repo.commit(STAGE, force=True)
