"""``cse models``: versions of the model, which one is in production, and the promotion gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cse.errors import CseError
from cse.settings import load_settings
from cse.settings.load import PARAMS_FILE
from flows.registry import (
    PRODUCTION,
    ModelVersion,
    assign,
    fetch_tags,
    find,
    judge_model,
    models,
    name_of_model,
    register,
    scores_at,
    trained_on_at,
)
from flows.repository import find_root
from flows.workspace import snapshot


@click.group("models")
def models_command() -> None:
    """List, show and promote model versions (git tags managed by GTO)."""


@models_command.command("list", epilog="\b\nExample:\n  cse models list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """List versions, newest first, with stage and scores."""
    from cse.evaluation.table import format_rows

    root = find_root()
    found = [_facts(root, model) for model in models(root, name_of_model(root))]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif found:
        head = ["version", "stage", "dev", "STS", "registered", "commit", "trained on"]
        click.echo(format_rows([head, *map(_cells, found)], "text").rstrip())
    else:
        click.echo(f"{name_of_model(root)}: no version registered yet; create one with `cse models promote`")


def _cells(facts: dict[str, Any]) -> list[str]:
    """Return the cells of the table: version, stage, dev score, STS average, time, commit, rows."""
    from cse.evaluation.measures import headline_name

    scores = facts["scores"]
    sts, when = scores.get(headline_name(scores) or ""), facts["registered"][:16].replace("T", " ")
    stages, rows = ", ".join(facts["stages"]) or "-", facts["trained_on"] or "-"
    return [facts["version"], stages, _two(scores.get("dev")), _two(sts), when, facts["commit"][:12], rows]


@models_command.command(
    epilog="\b\nExamples:\n  cse models show\n  cse models show production\n  cse models show v1.2.0"
)
@click.argument("version", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(version: str | None, as_json: bool) -> None:
    """Show one version, named by number or stage (default: newest)."""
    root = find_root()
    model = find(root, name_of_model(root), version)
    facts = _facts(root, model)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    for head, value in facts.items():
        if isinstance(value, dict):
            click.echo(f"{head}:")
            for name, score in value.items():
                click.echo(f"  {name:12} {_two(score)}")
        else:
            click.echo(f"{head}: {(', '.join(value) if isinstance(value, list) else value) or '-'}")
    click.echo(f"its bundle: dvc get . data/bundle --rev '{model.tag}' --out bundle")
    click.echo(f"its settings and lock file: git show '{model.tag}:params.yaml', git show '{model.tag}:dvc.lock'")


@models_command.command(epilog="\b\nExamples:\n  cse models promote\n  cse models promote v1.1.0 --push")
@click.argument("version", required=False)
@click.option("--force", is_flag=True, help="Promote even if the gate refuses; still prints the reasons.")
@click.option("--push", is_flag=True, help="Push the tags to origin.")
def promote(version: str | None, force: bool, push: bool) -> None:
    """Promote a version to the stage `production`.

    Without VERSION, registers the pipeline's result and promotes it. The gate refuses a model that scores more than
    `promotion.dev_tolerance` below the one in the stage on the dev pairs, or whose ONNX bundle differs from torch.
    """
    root = find_root()
    settings = load_settings(root / PARAMS_FILE)
    name = name_of_model(root)
    if version is None:
        from dvc.repo import Repo

        with Repo() as repo:  # a version is what `dvc.lock` describes
            stale = [stage for stage in repo.status() if not stage.endswith(".dvc")]
        if stale:
            raise CseError(f"{', '.join(stale)}: not up to date; run `dvc repro` first, or give a VERSION")
        model = register(root, name, snapshot(root, f"{name}: result of the pipeline"), push=push)
        click.echo(f"registered {model.tag}")
    else:
        if push:
            fetch_tags(root)
        model = find(root, name, version)
    verdict = judge_model(root, model, settings)
    for reason in verdict.reasons:
        click.echo(f"{model.tag}: {reason}", err=True)
    if not verdict.passed and not force:
        raise CseError(f"{model.tag}: not promoted to {PRODUCTION}; use `--force` to promote it anyway")
    tag = assign(root, model, PRODUCTION, push=push)
    held = verdict.promoted_dev
    against = "" if held is None else f", {verdict.dev or 0:.2f} against {held:.2f} on dev"
    click.echo(f"{model.tag} is in {PRODUCTION} ({tag}){against}")


def _facts(root: Path, model: ModelVersion) -> dict[str, Any]:
    return {
        "name": model.name,
        "version": model.version,
        "stages": list(model.stages),
        "registered": model.created.isoformat(),
        "by": model.author,
        "commit": model.revision,
        "trained_on": trained_on_at(root, model.revision),
        "scores": scores_at(root, model.revision),
    }


def _two(score: Any) -> str:
    return f"{score:.2f}" if isinstance(score, int | float) else "-"
