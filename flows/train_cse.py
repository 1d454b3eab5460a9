"""Flow ``train-cse``: one task per stage of ``dvc.yaml``, in the order of DVC's graph.

DVC is the cache and decides what has to run; a stage added to ``dvc.yaml`` is a task in the next run. A run without
changed settings works in the project's folder and leaves the same ``dvc.lock`` as ``dvc repro``. A run with changed
settings works in a throwaway clone and leaves a DVC experiment; the folder stays untouched.

``python -m flows.train_cse`` (or ``cse flow train``) runs the flow here, without a server.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import WithJsonSchema

from cse.errors import CseError
from cse.evaluation.dev_facts import dev_of, value_of
from cse.files import read_csv
from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.settings.document import write_values
from cse.settings.presets import apply_preset, preset_names
from cse.stages.common import METRICS, PLOTS, run_safely, shortfall
from flows.registry import PRODUCTION, assign, judge_model, name_of_model, register
from flows.repository import check_no_conflict, find_root, paths_left_behind, stages_in_order, uncommitted
from flows.stages import pull_data, push_data, raise_for, repro_stage
from flows.workspace import in_place, keep_as_experiment, push_experiment, snapshot, throwaway_clone

MOST_ATTEMPTS = 5  # per flow run: a worker that is lost every time is no accident
REFUSED, BELOW = "Refused", "Below backbone"
# Prefect refuses an unknown one before the run; here the run itself names the nearest, as `cse train` does
Preset = Annotated[str, WithJsonSchema({"type": "string", "enum": preset_names(), "title": "Preset"})]


@flow(name="train-cse")
def train_cse(
    preset: Preset | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006 - Prefect shows the default in its form; it is never changed
    keep_data: bool = False,
    workspace: Literal["auto", "clone"] = "auto",
    pull: bool = False,
    push: bool = False,
    promote: Literal["no", "register", "promote"] = "no",
) -> State[Any]:
    """Bring every stage of dvc.yaml up to date: prepare, train, evaluate, export and any other.

    Args:
        preset: a published system (`cse preset list`), replacing the one in params.yaml.
        overrides: settings for this run only, by dotted key: `{"train.learning_rate": 0.02, "prompt.length": 16}`.
        keep_data: train the preset on the data in params.yaml instead of the paper's.
        workspace: `auto` works in the project's folder if no setting changes, otherwise in a throwaway clone whose
            result is a DVC experiment; `clone` always uses a clone.
        pull: pull data and earlier results from the DVC remote first.
        push: push data, checkpoint and bundle to the DVC remote, and a clone's experiment to git's origin.
        promote: register the result as a version (`register`), and put it in production if it passes the gate
            (`promote`).
    """
    name, log = flow_run.get_name() or "run", get_run_logger()
    said, below, refused = list[str](), "", False
    try:
        _check_attempts()
        root = find_root()
        check_no_conflict(root)
        settings, changed = settings_of_run(root / PARAMS_FILE, preset, overrides, keep_data=keep_data)
        in_clone = changed or workspace == "clone"
        edited = [file for file in uncommitted(root) if file != "dvc.lock" and not file.startswith("data/")]
        if edited:
            more = ", ..." if len(edited) > 5 else ""
            log.warning("this run includes uncommitted changes: %s%s", ", ".join(edited[:5]), more)
        with throwaway_clone(root, name) if in_clone else in_place(root, log.warning) as place:
            params, revision = place.folder / PARAMS_FILE, None
            if in_clone:
                write_settings(params, preset, overrides | paths_left_behind(settings, root), keep_data=keep_data)
            if pull:
                raise_for(pull_data(place, return_state=True))
            for stage in stages_in_order(place.folder):
                raise_for(repro_stage.with_options(name=stage)(stage, place, pull, return_state=True))
            dev, below = read_dev(place.folder), read_shortfall(place.folder)
            said += [*([] if dev is None else [f"dev {dev:.2f}"]), *([below] if below else [])]
            if in_clone:
                revision = keep_as_experiment(place, name)
                said.append(f"experiment {name}")
            if push:
                raise_for(push_data(place, return_state=True))
            if push and in_clone:
                push_experiment(root, name)
            if promote != "no":
                state = give_version(
                    root, revision, load_settings(params), promote == "promote", push, f"train-cse run {name}",
                    return_state=True,
                )  # fmt: skip
                raise_for(state)
                refused = state.name == REFUSED
                said.append(state.message or "")
    except CseError as error:
        return Failed(message=str(error))
    # not plain `Completed` if nobody wants the result
    ended = REFUSED if refused else BELOW if below else None
    return Completed(name=ended, message="; ".join(said) or "up to date")


def settings_of_run(
    params: Path, preset: str | None, changes: Mapping[str, Any], *, keep_data: bool = False
) -> tuple[Settings, bool]:
    """Return the settings that a run would have, and whether they differ from those of the file."""
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, PARAMS_FILE.name)
        if params.exists():
            shutil.copyfile(params, draft)
        changed = write_settings(draft, preset, changes, keep_data=keep_data)
        settings = load_settings(draft)
    source = settings.data.source
    if preset is not None and "data.train_path" in changes and source != "files":
        raise CseError(
            f"data.train_path: not read, because preset {preset} uses data.source {source}; set data.source: files "
            "too, or keep_data: true"
        )
    return settings, bool(changed)


def write_settings(
    params: Path, preset: str | None, changes: Mapping[str, Any], *, keep_data: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Write a preset, then single values, to a settings file and return what changed: before and after, by dotted key.

    Args:
        changes: values by dotted key, which win over the preset's.
        keep_data: ignore the preset's data, see ``apply_preset``.
    """
    changed = {} if preset is None else dict(apply_preset(preset, params, keep_data=keep_data))
    for key, (before, after) in write_values(params, changes).items():
        changed[key] = (changed.get(key, (before,))[0], after)
    return {key: (before, after) for key, (before, after) in changed.items() if before != after}


def _check_attempts() -> None:
    if (flow_run.get_run_count() or 0) > MOST_ATTEMPTS:
        raise CseError(
            f"gave up after {MOST_ATTEMPTS} lost attempts; check the worker's log and the machine's "
            "memory, then start a new run: it resumes from the last saved state"
        )


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


def read_dev(folder: Path) -> float | None:
    """Return the dev score in a project's folder, times 100; None if there is none."""
    file = folder / METRICS / "train.json"
    return value_of(dev_of(json.loads(file.read_text(encoding="utf-8")))) if file.is_file() else None


def read_shortfall(folder: Path) -> str:
    """Return in words how far the trained model scores below its bare backbone; empty if it does not."""
    scores: dict[str, dict[str, float]] = {}
    for row in read_csv(folder / PLOTS / "sts.csv"):
        scores.setdefault(row["model"], {})[row["task"]] = float(row["spearman"])
    return shortfall(scores)


if __name__ == "__main__":
    from flows.server import run_here

    sys.exit(run_safely(lambda: run_here(train_cse)))
