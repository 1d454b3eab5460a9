"""Flow ``train-bank``: train the domains that changed side by side, and put those that pass the gate into the bank.

DVC knows each domain as a stage (``domain@NAME``) and decides which ones have to run. Ray trains them in the stages'
own folders, and the results are committed to DVC: ``dvc repro`` then has nothing left to do.

``python -m flows.train_bank`` (or ``cse flow train-bank``) runs the flow here, without a server.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Completed, Failed

from cse.errors import CseError, nearest
from cse.evaluation.dev_facts import dev_of, value_of
from cse.settings import PARAMS_FILE, load_settings
from cse.settings.domains import settings_of_domain
from cse.stages.common import BANK, METRICS, run_safely
from flows.processes import CommandError, explain, run_dvc, run_module
from flows.registry import PRODUCTION, assign, name_of_domain, register
from flows.repository import check_no_conflict, dvc_errors, find_root
from flows.stages import EXECUTED, OPTIONS, SKIPPED, failed, pull_data, push_data, raise_for, run_command
from flows.workspace import Workspace, in_place, snapshot

STAGE = "domain"  # of dvc.yaml
TABLE = "domains"  # key of the artifact
_ENTERED = ("added", "replaced")


@flow(name="train-bank")
def train_bank(
    domains: list[str] | None = None, pull: bool = False, push: bool = False, promote: bool = True
) -> State[Any]:
    """Train the domains of `bank.domains` whose data or settings changed, and bring the bank up to date.

    A domain that fails or is refused does not stop the others; the bank keeps its old prompts.

    Args:
        domains: names of domains; default: all.
        pull: pull data and earlier results from the DVC remote first.
        push: push the results to the DVC remote, and the versions to git's origin.
        promote: put trained domains that pass the gate into the bank, and register each as a version.
    """
    try:
        root = find_root()
        check_no_conflict(root)
        settings = load_settings(root / PARAMS_FILE, any_view=True)
        known = settings.bank.domains
        if not known:
            raise CseError("bank.domains: names no domains; docs/bank.md shows how to add them")
        names = list(dict.fromkeys(domains or known))
        for name in names:
            if name not in known:
                raise CseError(f"domains: no domain {name!r} in bank.domains{nearest(name, known)}")
            settings_of_domain(settings, name)  # refuse a mistake before anything is trained
        with in_place(root, get_run_logger().warning) as place:
            if pull:
                raise_for(pull_data(place, return_state=True))
            said, complete = _work(place, names, push, promote)
    except CseError as error:
        return Failed(message=str(error))
    return (Completed if complete else Failed)(message="; ".join(said))


def _work(place: Workspace, names: list[str], push: bool, promote: bool) -> tuple[list[str], bool]:
    """Train, commit, admit and register; return what to say, and whether all domains were trained."""
    root = place.folder
    stale = changed_domains(root, names)
    state = train_changed.with_options(name="train")(place, stale, return_state=True)
    still = changed_domains(root, names)
    rows = {name: _row(root, name, EXECUTED if name in stale else SKIPPED) for name in names if name not in still}
    if push:
        raise_for(push_data(place, return_state=True))
    said = [f"{len(stale) - len(still)} of {len(names)} domains trained"]
    if promote:
        gate = _admit(place, list(rows))
        entered = [name for name, one in gate.items() if one["outcome"] in _ENTERED]
        versions = give_versions(root, entered, push) if entered else {}
        for name, one in gate.items():
            rows[name] |= {"bank": one["outcome"], "dev before": one["before"], "version": versions.get(name, "-")}
        said.append(f"{len(entered)} entered {BANK}")
        said += [f"{name} refused: {one['reason']}" for name, one in gate.items() if one["outcome"] == "refused"]
    table = [*rows.values(), *({"domain": name, "stage": "Failed"} for name in still)]
    create_table_artifact(table=table, key=TABLE, description="domains of the bank; scores are Spearman * 100")
    return said if state.is_completed() else [*said, state.message or "failed"], not still


@task(task_run_name="train", **OPTIONS)
def train_changed(place: Workspace, names: list[str]) -> State[Any]:
    """Train domains side by side and commit those that are finished to DVC.

    Tried again, it keeps finished domains and resumes a killed training.
    """
    names = changed_domains(place.folder, names)
    if not names:
        return Completed(name=SKIPPED, message="nothing changed")
    log = get_run_logger()
    problem: State[Any] | None = None
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "ended.json")
        arguments = [*names, "--json", str(told)]
        try:
            run_module("cse.stages.domain", arguments, place.folder, lambda line: log.info("%s", line))
        except CommandError as error:
            problem = failed(*explain("train", error.code, error.last_lines))
        ended = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
    if done := [f"{STAGE}@{name}" for name in names if ended.get(name) == ""]:
        try:
            run_dvc(["commit", "--force", *done], place.folder, lambda line: log.info("%s", line))
        except CommandError as error:
            return failed(*explain("commit", error.code, error.last_lines))
    return problem or Completed(name=EXECUTED, message=f"trained {', '.join(names)}")


def changed_domains(root: Path, names: list[str]) -> list[str]:
    """Return the domains that DVC would run: their data, settings or code changed, or there is no result yet."""
    from dvc.repo import Repo

    with dvc_errors(root / "dvc.yaml"), Repo(str(root)) as repo, repo.lock:
        stages = {stage.name: stage for stage in repo.index.stages if stage.path_in_repo == "dvc.yaml"}
        return [name for name in names if stages[f"{STAGE}@{name}"].status()]  # targets would depend on the folder


def _admit(place: Workspace, names: list[str]) -> dict[str, dict[str, Any]]:
    """Put domains that pass the gate into the bank; return what became of each."""
    if not names:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "admitted.json")
        arguments = ["bank", "update", *names, "--json", str(found)]
        raise_for(run_command.with_options(name="bank")("bank", arguments, place=place, return_state=True))
        tree: dict[str, dict[str, Any]] = json.loads(found.read_text(encoding="utf-8"))
    return tree


def _row(root: Path, name: str, stage: str) -> dict[str, Any]:
    """Return a domain's cells of the table: what ran, and its scores."""
    scores = json.loads((root / METRICS / "domains" / f"{name}.json").read_text(encoding="utf-8"))
    row = {"domain": name, "stage": stage, "dev": value_of(dev_of(scores))}
    return row | scores.get("trained", {})


@task(task_run_name="register", cache_policy=NO_CACHE)
def give_versions(root: Path, names: list[str], push: bool) -> dict[str, str]:
    """Register each domain as the next version of its own name, in the stage `production`."""
    revision = snapshot(root, f"domains {', '.join(names)}")
    versions = {}
    for name in names:
        model = register(root, name_of_domain(root, name), revision, f"domain {name}", push=push)
        assign(root, model, PRODUCTION, push=push)
        versions[name] = model.version
    return versions


if __name__ == "__main__":
    from flows.server import run_here

    sys.exit(run_safely(lambda: run_here(train_bank)))
