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
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import WithJsonSchema

from cse.errors import CseError
from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_of
from cse.evaluation.table import format_rows
from cse.files import read_csv
from cse.settings import PARAMS_FILE, Settings, load_settings
from cse.settings.document import write_values, yaml_value
from cse.settings.load import parse_yaml, read_text
from cse.settings.presets import apply_preset, preset_names
from cse.stages.common import BUNDLE, CHECKPOINT, METRICS, PLOTS, PREPARED, SCRATCH, run_safely, shortfall
from cse.tune.outcome import read_sweep
from flows.registry import PRODUCTION, assign, judge_model, name_of_model, register
from flows.repository import check_no_conflict, find_root, git, paths_left_behind, stages_in_order, uncommitted
from flows.stages import as_options, pull_data, push_data, raise_for, repro_stage, run_command
from flows.tune import keep_trials, stages_before, sweep_settings
from flows.workspace import Workspace, in_place, keep_as_experiment, push_experiment, snapshot, throwaway_clone

MOST_ATTEMPTS = 5  # per flow run: a worker that is lost every time is no accident
REFUSED, BELOW = "Refused", "Below backbone"
SUMMARY = "run-summary"  # key of the artifact
UNIT = "times 100: Spearman, or the measure in brackets"
# Prefect refuses an unknown one before the run; here the run itself names the nearest, as `cse train` does
Preset = Annotated[str, WithJsonSchema({"type": "string", "enum": preset_names(), "title": "Preset"})]


@flow(name="train-cse")
def train_cse(
    preset: Preset | None = None,
    overrides: dict[str, Any] = {},  # noqa: B006 - Prefect shows the default in its form; it is never changed
    keep_data: bool = False,
    sweep: str | dict[str, Any] | None = None,
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
    said, facts, below, refused = list[str](), dict[str, str](), "", False
    try:
        _check_attempts()
        root = find_root()
        check_no_conflict(root)
        settings, changed = settings_of_run(root / PARAMS_FILE, preset, overrides, keep_data=keep_data)
        in_clone = changed or workspace == "clone" or sweep is not None
        edited = [file for file in uncommitted(root) if file != "dvc.lock" and not file.startswith("data/")]
        if edited:
            more = ", ..." if len(edited) > 5 else ""
            log.warning("this run includes uncommitted changes: %s%s", ", ".join(edited[:5]), more)
        with throwaway_clone(root, name) if in_clone else in_place(root, log.warning) as place:
            before, params = read_scores(place.folder), place.folder / PARAMS_FILE
            revision: str | None = None
            if in_clone:
                write_settings(params, preset, overrides | paths_left_behind(settings, root), keep_data=keep_data)
            if pull:
                raise_for(pull_data(place, return_state=True))
            if sweep is not None:
                facts |= _search(place, name, sweep, pull)
            for stage in stages_in_order(place.folder):
                _run(place, stage, pull)
            scores, below = read_scores(place.folder), read_shortfall(place.folder)
            said += [f"dev {scores['dev']:.2f}"] if "dev" in scores else []
            said += [below] if below else []
            facts |= _results(place, edited)
            if in_clone:
                revision = keep_as_experiment(place, name)
                facts["DVC experiment"] = f"`{name}`; apply it with `dvc exp apply {name}`"
                said.append(f"experiment {name}")
            publish(name, place.folder, before, facts)
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


def sweep_options(wanted: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of group ``tune`` for a space given by name or by values."""
    if not wanted:
        raise CseError("the search space is empty; give values by key, or the name of a space")
    if isinstance(wanted, str):
        return {"tune.space": wanted, "tune.over": []}
    over = [f"{key}={value if isinstance(value, str) else yaml_value(value)}" for key, value in wanted.items()]
    return {"tune.over": over}


def _search(place: Workspace, name: str, sweep: str | Mapping[str, Any], pull: bool) -> dict[str, str]:
    """Run a sweep, keep its trials, leave the best one's settings and training in the clone, and return what to say."""
    wanted = sweep_options(sweep)
    sweep_settings(place.folder / PARAMS_FILE, wanted)
    for stage in stages_before(place):
        _run(place, stage, pull)
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "sweep.json")
        arguments = [*as_options(wanted), "--scratch", str((place.source / SCRATCH).resolve()), "--json", str(told)]
        run = run_command.with_options(name="sweep")
        raise_for(run("sweep", arguments, "cse.cli.sweep", place, return_state=True))
        found = read_sweep(Path(json.loads(told.read_text(encoding="utf-8"))["folder"]))
    assert found is not None  # noqa: S101 - the command wrote it
    names, best = keep_trials(place, found, found.best, name, get_run_logger().info), found.best
    return {
        "Sweep": f"{len(found.trials)} trials in space {found.space}; best dev {best.score:.2f}",
        "Best setting of the sweep": ", ".join(f"`{key}` {value}" for key, value in best.values.items()),
        "Trials as DVC experiments": ", ".join(f"`{one}`" for one in names),
    }


def _run(place: Workspace, stage: str, pull: bool) -> None:
    raise_for(repro_stage.with_options(name=stage)(stage, place, pull, return_state=True))


def _check_attempts() -> None:
    if (flow_run.get_run_count() or 0) > MOST_ATTEMPTS:
        raise CseError(
            f"gave up after {MOST_ATTEMPTS} lost attempts; check the worker's log and the machine's "
            "memory, then start a new run: it resumes from the last saved state"
        )


def _results(place: Workspace, edited: list[str]) -> dict[str, str]:
    """Return the commit and the hashes of the results."""
    with_more = f" with uncommitted changes of {', '.join(f'`{file}`' for file in edited[:5])}" if edited else ""
    facts = {"Commit": f"`{git(place.source, 'rev-parse', 'HEAD')[:12]}`{with_more}"}
    lock = place.folder / "dvc.lock"
    stages = parse_yaml(read_text(lock), str(lock)).get("stages", {}) if lock.is_file() else {}
    outs = {out["path"]: out.get("md5") for stage in stages.values() for out in stage.get("outs", ())}
    return facts | {f"`{p}`": f"md5 `{outs[str(p)]}`" for p in (PREPARED, CHECKPOINT, BUNDLE) if str(p) in outs}


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


# ---- the summary of a run: Prefect itself shows parameters, stages with their times, lines and why it failed ------


def read_scores(folder: Path) -> dict[str, float]:
    """Return the scores in a project's folder, times 100: ``dev``, and ``MODEL TASK``, with its measure in brackets.

    Without brackets it is Spearman.
    """
    dev = _dev(folder)
    scores = {} if dev is None else {"dev": dev.value}
    for model, tasks in _json(folder / METRICS / "evaluation.json").items():
        scores |= {f"{model} {task}": float(score) for task, score in tasks.items() if isinstance(score, int | float)}
    return scores


def read_shortfall(folder: Path) -> str:
    """Return in words how far the trained model scores below its bare backbone; empty if it does not."""
    scores: dict[str, dict[str, float]] = {}
    for row in read_csv(folder / PLOTS / "sts.csv"):
        scores.setdefault(row["model"], {})[row["task"]] = float(row["spearman"])
    return shortfall(scores)


def as_markdown(name: str, folder: Path, before: Mapping[str, float], facts: Mapping[str, str]) -> str:
    """Return the summary of a finished run: the scores in its folder beside those ``before``, and further facts."""
    now, dev = read_scores(folder), _dev(folder)
    short, rows = read_shortfall(folder), _json(folder / METRICS / "train.json").get("trained_on")
    head = "Finished."
    if dev is not None:
        change = f", {_against(dev.value, before['dev'])} compared with the previous run" if "dev" in before else ""
        head = f"Dev {dev.measure} * 100: **{dev.value:.2f}**{change}."
    head += (f" Trained on {rows}." if rows else "") + (f" **The model is {short}.**" if short else "")
    unit = UNIT if dev is None or dev.measure == SPEARMAN else f"{UNIT}; dev: {dev.measure}"
    table = [[one, f"{score:.2f}", _against(score, before.get(one))] for one, score in now.items()]
    parts = [f"# {name}", head, format_rows([[unit, "this run", "change"], *table], "markdown") if now else ""]
    parts.append("\n".join(f"- {fact}: {text}" for fact, text in facts.items()))
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def publish(name: str, folder: Path, before: Mapping[str, float], facts: Mapping[str, str]) -> None:
    """Write the summary as an artifact of the flow run; if the server is down, log a warning and continue."""
    try:
        create_markdown_artifact(as_markdown(name, folder, before, facts), key=SUMMARY, description=name)
    except Exception as error:  # whatever the client raises, the run continues
        get_run_logger().warning("artifact not written: %s", str(error) or type(error).__name__)


def _against(score: float, before: float | None) -> str:
    return "new" if before is None else f"{score - before:+.2f}"


def _dev(folder: Path) -> DevScore | None:
    return dev_of(_json(folder / METRICS / "train.json"))


def _json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


if __name__ == "__main__":
    from flows.server import run_here

    sys.exit(run_safely(lambda: run_here(train_cse)))
