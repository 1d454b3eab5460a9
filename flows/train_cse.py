"""Flow ``train-cse``: one task per stage of ``dvc.yaml``, in the order of DVC's graph.

DVC is the cache and decides what has to run; a stage added to ``dvc.yaml`` is a task in the next run. A run without
changed settings works in the project's folder and leaves the same ``dvc.lock`` as ``dvc repro``. A run with changed
settings works in a throwaway clone and leaves a DVC experiment; the folder stays untouched.

``python -m flows.train_cse`` (or ``cse flow train``) runs the flow here, without a server.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from cse.errors import CseError
from cse.settings import PARAMS_FILE, Settings
from cse.settings.data import DataSettings
from cse.settings.load import parse_yaml, read_text
from cse.stages.common import BUNDLE, CHECKPOINT, PREPARED, SCRATCH, run_safely
from cse.tune.outcome import read_sweep
from flows.artifacts import Summary, publish, read_scores, read_shortfall
from flows.parameters import (
    Overrides,
    Preset,
    Sweep,
    as_options,
    changes_of,
    check_train_path,
    settings_of_run,
    sweep_options,
    write_settings,
)
from flows.registry import PRODUCTION, assign, judge_model, name_of_model, register
from flows.repository import (
    check_no_conflict,
    commit_link,
    find_root,
    paths_left_behind,
    stages_in_order,
    uncommitted,
)
from flows.stages import pull_data, push_data, raise_for, repro_stage, run_command
from flows.tune import keep_trials, stages_before, sweep_settings
from flows.workspace import Workspace, in_place, keep_as_experiment, push_experiment, snapshot, throwaway_clone

MOST_ATTEMPTS = 5  # per flow run: a worker that is lost every time is no accident
REFUSED, BELOW = "Refused", "Below backbone"


@flow(name="train-cse")
def train_cse(
    preset: Preset | None = None,
    overrides: Overrides = {},  # noqa: B006 - Prefect shows the default in its form; it is never changed
    data: DataSettings | None = None,
    keep_data: bool = False,
    sweep: Sweep | None = None,
    workspace: Literal["auto", "clone"] = "auto",
    pull: bool = False,
    push: bool = False,
    promote: Literal["no", "register", "promote"] = "no",
) -> State[Any]:
    """Bring every stage of dvc.yaml up to date: prepare, train, evaluate, export and any other.

    Args:
        preset: a published system (`cse preset list`), replacing the one in params.yaml.
        overrides: settings for this run only, by dotted key: `{"train.learning_rate": 0.02, "prompt.length": 16}`.
        data: another data source; keys left out keep their value from params.yaml or the preset.
        keep_data: train the preset on the data in params.yaml instead of the paper's.
        sweep: search with Ray Tune first: a named space (`cse tune --help`), or
            lists and ranges by dotted key: `{"train.learning_rate": "2e-3..5e-2 log", "prompt.length": [8, 16]}`. The
            run continues with the best dev score.
        workspace: `auto` works in the project's folder if no setting changes, otherwise in a throwaway clone whose
            result is a DVC experiment; `clone` always uses a clone.
        pull: pull data and earlier results from the DVC remote first.
        push: push data, checkpoint and bundle to the DVC remote, and a clone's experiment to git's origin.
        promote: register the result as a version (`register`), and put it in production if it passes the gate
            (`promote`).
    """
    name, log = flow_run.get_name() or "run", get_run_logger()
    summary = Summary(name, Path.cwd(), preset=preset)
    said: list[str] = []
    try:
        _check_attempts()
        root = find_root()
        check_no_conflict(root)
        changes = changes_of(data, overrides)
        settings, changed = settings_of_run(root / PARAMS_FILE, preset, changes, keep_data=keep_data)
        check_train_path(preset, changes, settings)
        in_clone = changed or workspace == "clone" or sweep is not None
        if in_clone:
            changes |= {key: path for key, path in paths_left_behind(settings, root).items() if key not in changes}
        if files := _edited(root):
            more = ", ..." if len(files) > 5 else ""
            log.warning("this run includes uncommitted changes: %s%s", ", ".join(files[:5]), more)
        with (
            throwaway_clone(root, name) if in_clone else in_place(root, log.warning) as place,
            _published(summary, place),
        ):
            settings = _settle(place, summary, changes, keep_data)
            if pull:
                raise_for(pull_data(place, return_state=True))
            if sweep:
                best = _search(place, summary, sweep, pull)
                settings = _settle(place, summary, changes | best, keep_data)
            for stage in stages_in_order(place.folder):
                _run(place, stage, summary, pull)
            scores = read_scores(place.folder)
            summary.shortfall = read_shortfall(place.folder)
            said += [f"dev {scores['dev']:.2f}"] if "dev" in scores else []
            said += [summary.shortfall] if summary.shortfall else []
            summary.facts |= _facts(place)
            revision = None
            if in_clone:
                revision = keep_as_experiment(place, name)
                summary.facts["DVC experiment"] = f"`{name}`; apply it with `dvc exp apply {name}`"
                said.append(f"experiment {name}")
            if push:
                raise_for(push_data(place, return_state=True))
                summary.facts["Pushed"] = "data, checkpoint and bundle, to the DVC remote"
                if in_clone and push_experiment(root, name):
                    summary.facts["Elsewhere"] = f"`dvc exp pull origin {name}`, then `dvc exp apply {name}`"
            if promote != "no":
                state = give_version(
                    root, revision, settings, promote == "promote", push, f"train-cse run {name}", return_state=True
                )
                raise_for(state)
                summary.facts["Registry"] = state.message or ""
                summary.reason = state.message or "" if state.name == REFUSED else ""
                said.append(state.message or "")
    except CseError as error:
        return Failed(message=str(error))
    return ended(summary, "; ".join(said) or "up to date")


def ended(summary: Summary, message: str) -> State[Any]:
    """Return the state of a finished run: not plain ``Completed`` if nobody wants the result."""
    if summary.reason:
        return Completed(name=REFUSED, message=message)
    return Completed(name=BELOW, message=message) if summary.shortfall else Completed(message=message)


@contextmanager
def _published(summary: Summary, place: Workspace) -> Iterator[None]:
    """Publish the summary of the work in a workspace, however it ends."""
    summary.folder = place.folder
    summary.before = read_scores(place.folder)
    try:
        yield
    except CseError as error:
        summary.reason = str(error)
        raise
    finally:
        publish(summary)


def _search(place: Workspace, summary: Summary, sweep: str | Mapping[str, Any], pull: bool) -> dict[str, Any]:
    """Run a sweep, keep its trials, and return the values of the best; the clone holds its training."""
    wanted = sweep_options(sweep)
    sweep_settings(place.folder / PARAMS_FILE, wanted)
    for stage in stages_before(place):
        _run(place, stage, summary, pull)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "sweep.json")
        arguments = [*as_options(wanted), "--scratch", str((place.source / SCRATCH).resolve()), "--json", str(told)]
        state = run_command.with_options(name="sweep")("sweep", arguments, "cse.cli.sweep", place, return_state=True)
        summary.stages.append(("sweep", state.name or "?", time.monotonic() - started))
        raise_for(state)
        found = read_sweep(Path(json.loads(told.read_text(encoding="utf-8"))["folder"]))
    assert found is not None  # noqa: S101 - the command wrote it
    names = keep_trials(place, found, found.best, summary.flow_run, get_run_logger().info)
    best = found.best
    summary.facts["Sweep"] = f"{len(found.trials)} trials in space {found.space}; best dev {best.score:.2f}"
    summary.facts["Best setting of the sweep"] = ", ".join(f"`{key}` {value}" for key, value in best.values.items())
    summary.facts["Trials as DVC experiments"] = ", ".join(f"`{name}`" for name in names)
    return best.values


def _settle(place: Workspace, summary: Summary, changes: dict[str, Any], keep_data: bool) -> Settings:
    """Write this run's settings into the clone, record what they change, and return them."""
    params, preset = place.folder / PARAMS_FILE, summary.preset
    settings, _ = settings_of_run(params, preset, changes, keep_data=keep_data)
    if not place.in_place:
        summary.changes = {**summary.changes, **write_settings(params, preset, changes, keep_data=keep_data)}
    return settings


def _run(place: Workspace, stage: str, summary: Summary, pull: bool) -> None:
    started = time.monotonic()
    state = repro_stage.with_options(name=stage)(stage, place, pull, return_state=True)
    summary.stages.append((stage, state.name or "?", time.monotonic() - started))
    raise_for(state)


def _check_attempts() -> None:
    if (flow_run.get_run_count() or 0) > MOST_ATTEMPTS:
        raise CseError(
            f"gave up after {MOST_ATTEMPTS} lost attempts; check the worker's log and the machine's "
            "memory, then start a new run: it resumes from the last saved state"
        )


def _edited(root: Path) -> list[str]:
    return [file for file in uncommitted(root) if file != "dvc.lock" and not file.startswith("data/")]


def _facts(place: Workspace) -> dict[str, str]:
    """Return the commit and the hashes of the results."""
    facts = {"Commit": commit_link(place.source)}
    if dirty := uncommitted(place.source):
        facts["Commit"] += f" with uncommitted changes of {', '.join(f'`{file}`' for file in dirty[:5])}"
    lock = place.folder / "dvc.lock"
    stages = parse_yaml(read_text(lock), str(lock)).get("stages", {}) if lock.is_file() else {}
    outs = {out["path"]: out.get("md5") for stage in stages.values() for out in stage.get("outs", ())}
    results = [str(path) for path in (PREPARED, CHECKPOINT, BUNDLE) if str(path) in outs]
    return facts | {f"`{path}`": f"md5 `{outs[path]}`" for path in results}


@task(task_run_name="register", cache_policy=NO_CACHE)
def give_version(
    root: Path, revision: str | None, settings: Settings, promote: bool, push: bool, message: str
) -> State[Any]:
    """Register the result as the next version and, on request, put it in production if it passes the gate.

    Returns:
        Completed; named ``Refused``, with the reason, if the gate refused; Failed if git or GTO refused.
    """
    try:
        model = register(root, name_of_model(root), revision or snapshot(root, message), message, push=push)
        if not promote:
            return Completed(message=f"registered {model.tag}")
        verdict = judge_model(root, model, settings)
        if not verdict.passed:
            reasons = "; ".join(verdict.reasons)
            return Completed(name=REFUSED, message=f"{model.tag} not promoted to {PRODUCTION}: {reasons}")
        assign(root, model, PRODUCTION, push=push)
    except CseError as error:
        return Failed(message=f"register: {error}")
    against = "" if verdict.promoted_dev is None else f" (dev {verdict.dev:.2f} against {verdict.promoted_dev:.2f})"
    return Completed(message=f"promoted {model.tag} to {PRODUCTION}{against}")


if __name__ == "__main__":
    from flows.server import run_here

    sys.exit(run_safely(lambda: run_here(train_cse)))
