"""A sweep around the pipeline: Ray Tune searches, DVC stores the results.

Trials run outside the repository. Only the driver hands their results to DVC, one by one, in a throwaway clone: as
outputs of stage ``train``, so that the pipeline restores the best trial instead of training again.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.stages.common import CHECKPOINT, METRICS, PLOTS
from cse.tune.outcome import Sweep, TrialRecord
from cse.tune.spaces import build_space, only
from flows.parameters import write_settings
from flows.repository import dvc_errors, experiment, stages_in_order
from flows.workspace import Workspace, bring_over, identity, left_to_git

STAGE = "train"  # what a trial is


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
        best: comes last.
        place: a clone with the results of the stages before, and the settings around the search.
        say: called with one line per experiment.
    """
    logging.getLogger("dvc").setLevel(logging.WARNING)  # it reports each change of a lock file
    finished = [trial for trial in sweep.trials if trial.state == "finished"]
    names = []
    for trial in sorted(
        finished, key=lambda trial: trial.number == best.number
    ):  # the best last: it stays in the clone
        called = f"{name}-{trial.number:02d}"
        take_trial(place, trial)
        if experiment(called, place.source) is None:
            _save(place, called)
            seed = f", seed {trial.seed}" if trial.seed != best.seed else ""
            say(f"experiment {called}: {trial.name}{seed}, dev {trial.score:.2f}")
        names.append(called)
    return names


def take_trial(place: Workspace, trial: TrialRecord) -> None:
    """Make a trial the result of stage ``train`` in a clone: its settings, its outputs, and DVC's note of both."""
    from dvc.repo import Repo

    assert not place.in_place, "outputs of a clone alone are removed"  # noqa: S101
    folder = Path(trial.folder)
    write_settings(place.folder / PARAMS_FILE, None, trial.values)
    _forget_later_stages(place)
    for name, out in (("checkpoint", CHECKPOINT), ("plots", PLOTS / "train"), ("train.json", METRICS / "train.json")):
        target = place.folder / out
        shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (folder / name).is_dir() else shutil.copyfile)(folder / name, target)
    # DVC looks for the stage where the process is
    with dvc_errors(f"trial {trial.number}: DVC did not take its results"), chdir(place.folder), Repo() as repo:
        repo.commit(STAGE, force=True)


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
    with dvc_errors(f"experiment {name}"), _variables(who), chdir(place.folder), Repo() as repo:
        # later stages have nothing to save; targets may be stages alone, by name
        repo.experiments.save(name=name, targets=[STAGE], force=True, include_untracked=untracked)
    bring_over(place, name)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
