"""``cse tune``: search for better settings, keep finished trials as DVC experiments, promote the best.

Trials run outside the repository. Only the driver hands their results to DVC, one by one, in a throwaway clone: as
outputs of stage ``train``, so that the pipeline restores the best trial instead of training again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import click

from cse.cli.options import parse_overrides, set_option
from cse.cli.sweep import sweep_and_confirm, trial_options
from cse.errors import CseError
from cse.process import variables_set
from cse.settings import Settings, load_settings
from cse.settings.document import write_values, yaml_value
from cse.settings.load import PARAMS_FILE, flatten
from cse.stages.common import CHECKPOINT, METRICS, MINED, PLOTS, PREPARED, SCRATCH
from cse.training import Folders
from cse.tune.outcome import FINISHED, Sweep, TrialRecord, to_promote
from cse.tune.spaces import build_space, only, read_space, shipped
from flows.processes import HINTS, CommandError, explain, last_after, run_dvc
from flows.repository import dvc_errors, experiment, paths_left_behind, project_folder, stages_in_order
from flows.workspace import Workspace, bring_over, identity, left_to_git, throwaway_clone

STAGE = "train"  # what a trial is


@click.command(
    epilog="\b\nSpaces:\n"
    + "".join(f"  {name:13} {space.about}\n" for name, space in shipped().items())
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
    for package in ("ray", "optuna"):  # before anything is prepared
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    with throwaway_clone(root, f"tune-{os.getpid()}") as place:
        write_values(place.folder / PARAMS_FILE, changes)
        Thread(target=import_module, args=("cse.tune.driver",), daemon=True).start()  # seconds, while stages run
        _reproduce(stages_before(place), place)
        sweep, best = sweep_and_confirm(
            load_settings(place.folder / PARAMS_FILE, wanted),
            Folders(place.folder / PREPARED, place.folder / MINED),
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


# ---- trials in DVC --------------------------------------------------------------------------------------------------


def stages_before(place: Workspace) -> list[str]:
    """Return the stages that a sweep needs the results of, in order."""
    stages = stages_in_order(place.folder)
    return stages[: stages.index(STAGE)]


def keep_trials(
    place: Workspace, sweep: Sweep, best: TrialRecord, name: str, say: Callable[[str], object]
) -> list[str]:
    """Save each finished trial as a DVC experiment of the tree that the clone was made from.

    The clone is left with the results of the best one.

    Returns:
        The names of the experiments, the best one last.

    Args:
        place: a clone with the results of the stages before, and the settings around the search.
        best: comes last.
        say: called with one line per experiment.
    """
    assert not place.in_place, "outputs of a clone alone are removed"  # noqa: S101
    from dvc.repo import Repo  # it looks for the stage where the process is

    logging.getLogger("dvc").setLevel(logging.WARNING)  # it reports each change of a lock file
    _forget_later_stages(place)
    finished = [trial for trial in sweep.trials if trial.state == FINISHED]
    names, around = [], (place.folder / PARAMS_FILE).read_bytes()
    for trial in sorted(finished, key=lambda trial: trial.number == best.number):
        names.append(f"{name}-{trial.number:02d}")
        known = experiment(names[-1], place.source) is not None
        if not known or trial.number == best.number:
            (place.folder / PARAMS_FILE).write_bytes(around)  # without the values of the trial before
            _take_trial(place, trial)
        if trial.number == best.number:  # saving an experiment notes the others' outputs
            with dvc_errors(f"trial {trial.number}: DVC did not take its results"), chdir(place.folder), Repo() as repo:
                repo.commit(STAGE, force=True)
        if not known:
            _save(place, names[-1])
            seed = f", seed {trial.seed}" if trial.seed != best.seed else ""
            say(f"experiment {names[-1]}: {trial.name}{seed}, dev {trial.score:.2f}")
    return names


def _take_trial(place: Workspace, trial: TrialRecord) -> None:
    """Put a trial's settings and its outputs of stage ``train`` into a clone."""
    folder = Path(trial.folder)
    write_values(place.folder / PARAMS_FILE, trial.values)
    for name, out in (("checkpoint", CHECKPOINT), ("plots", PLOTS / "train"), ("train.json", METRICS / "train.json")):
        target = place.folder / out
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (folder / name).is_dir() else shutil.copyfile)(folder / name, target)


def sweep_settings(params: Path, wanted: Mapping[str, Any], names: Sequence[str] = ()) -> Settings:
    """Return the settings of a sweep, its space checked.

    Args:
        wanted: values by dotted key, over those of the file.
        names: of the space's settings that are tried alone.
    """
    settings = load_settings(params, wanted)
    only(build_space(settings), names)
    return settings


def _forget_later_stages(place: Workspace) -> None:
    """Remove what later stages measured on another model, so that an experiment does not show it as the trial's."""
    from dvc.repo import Repo

    stages = stages_in_order(place.folder)
    later = set(stages[stages.index(STAGE) + 1 :])
    with Repo(str(place.folder)) as repo:
        for stage in repo.index.stages:
            for out in stage.outs if getattr(stage, "name", None) in later else ():
                if not out.use_cache:
                    Path(out.fs_path).unlink(missing_ok=True)


def _save(place: Workspace, name: str) -> None:
    from dvc.repo import Repo

    untracked, who = left_to_git(place.folder), identity(place.source)
    with dvc_errors(f"experiment {name}"), variables_set(who), chdir(place.folder), Repo() as repo:
        # later stages have nothing to save; targets may be stages alone, by name
        repo.experiments.save(name=name, targets=[STAGE], force=True, include_untracked=untracked)
    bring_over(place, name)
