"""Stage ``evaluate``: compare the checkpoint with its bare backbone, or any models a user names."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click

from cse.data.store import PreparedData
from cse.data.suite import SuiteData, open_suite
from cse.evaluation.record import trained_on, write_record
from cse.evaluation.space import DENSITY_COLUMNS, density_rows
from cse.evaluation.suite import SuiteResults, evaluate_suite
from cse.evaluation.table import format_suite
from cse.files import write_csv, write_rounded_json
from cse.model.checkpoint import identity_of, read_config
from cse.model.declared import check_model
from cse.model.device import choose_device, environment
from cse.outputs import Kind, check_folder, publish_file, publish_folder
from cse.runtime.bank import Bank, meaning_of
from cse.runtime.domain import AUTO
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.settings.model import BackboneSettings
from cse.stages.common import BACKBONE, CHECKPOINT, METRICS, PLOTS, PREPARED, RECORDS, TRAINED, run_stage, shortfall
from cse.stages.open_model import BackboneOf, open_model


def evaluate_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "evaluation.json",
    records: Path = RECORDS,
    plots: Path = PLOTS,
    called: str = TRAINED,
) -> None:
    """Score the checkpoint and its bare backbone.

    Write metrics, one record per model for ``cse report``, and the data of two plots: scores by task and the density
    of cosines by gold similarity.
    """
    check_folder(records, Kind.RECORDS)
    data = open_suite(PreparedData(prepared))
    models: dict[str, str | BackboneOf] = {TRAINED: str(checkpoint)}
    if not read_config(checkpoint)["backbone"]["words"]:
        models[BACKBONE] = BackboneOf(checkpoint)
    results: dict[str, SuiteResults] = {}
    own = data.own and "tasks" in settings.evaluation.measures
    if data.sts or data.transfer or data.cxc or own:
        results = evaluate_models(
            models,
            data,
            measures=settings.evaluation.measures,
            device=settings.evaluation.device,
            progress=sys.stderr.isatty(),
        )
        click.echo(format_suite(results, trained_on=rows_of(models)))
        short = shortfall({name: result.sts.figures for name, result in results.items() if result.sts is not None})
        if short:
            click.echo(f"the trained model is {short}")
    else:
        click.echo(
            "no evaluation data: set data.evaluation_path to a SentEval folder or a file of scored pairs, or "
            "data.task_path to a task of your own"
        )
    with publish_folder(records, Kind.RECORDS) as folder:
        for name, result in results.items():
            (folder / name).mkdir()
            shown = called if name == TRAINED else name
            save_record(folder / name, shown, models[name], result, settings.evaluation.device)
    with publish_file(metrics) as target:
        write_rounded_json(target, {name: headline(result) for name, result in results.items()})
    scores, curves = [], []
    for name, result in results.items():
        if result.sts is not None:
            scores += [(task, name, f"{value:.4f}") for task, value in result.sts.figures.items()]
        curves += [(name, *row) for row in density_rows(result.densities)]
    for file, head, rows in (
        ("sts.csv", ("task", "model", "spearman"), scores),
        ("density.csv", ("model", *DENSITY_COLUMNS), curves),
    ):
        with publish_file(plots / file) as target:
            write_csv(target, head, rows)


def headline(result: SuiteResults) -> dict[str, float]:
    """Return the average, if any, then one number per task, to fit ``dvc metrics show``."""
    scores: dict[str, float] = {}
    sts = result.sts
    if sts is not None:
        scores = {sts.average_name: sts.average()} if len(sts.tasks) > 1 else {}
        scores |= sts.figures
    if result.cxc is not None:
        scores |= {"CxC-STS": result.cxc.values["mean"]}
    if result.transfer is not None:
        if len(result.transfer.tasks) > 1:
            scores |= {f"{result.transfer.average_name} (accuracy)": result.transfer.average()}
        scores |= {f"{name} (accuracy)": value for name, value in result.transfer.figures.items()}
    if result.retrieval is not None:
        scores |= result.retrieval.values
    if result.space is not None:
        scores |= result.space.values
    scores |= {f"{name} ({score.main})": score.values[score.main] for name, score in result.tasks.items()}
    return scores


_LONGEST = 200  # bytes of a folder name; leaves room for a draft suffix below the limit of 255


def describe_model(model: str | BackboneOf) -> dict[str, Any]:
    """Return the known facts of a model: kind, backbone, prompt and, for a checkpoint, how it was trained."""
    if isinstance(model, BackboneOf):
        said: dict[str, Any] = {}
        if isinstance(model.model, BackboneSettings):
            said = model.model.model_dump()
            named = {key: said.pop(key) for key in ("name", "revision")}
        else:
            recorded = read_config(model.model)["backbone"]
            named = {key: recorded[key] for key in ("name", "revision", "sha256")}
        return {"kind": "backbone", "backbone": named, "prompt": None, **said}
    found = meaning_of(model)
    if found.kind is Kind.CHECKPOINT:
        # without hashes, records of the same system differ only in their seed
        return {key: value for key, value in read_config(found.folder).items() if key not in ("files", "seal")}
    if found.encodes or found.domain is not None:
        bank = Bank(found.folder, whole=False)
        if found.domain == AUTO:
            return {"kind": "bank", "backbone": bank.manifest.backbone, "prompt": None}
        facts = (bank.domain(found.domain) if found.domain else bank.only or bank.bare).facts
        return {
            "kind": "domain" if found.domain else "bundle",
            "backbone": bank.manifest.backbone,
            "prompt": facts.prompt,
            "pooler": facts.pooler,
            "max_length": facts.max_length,
            "trained_on": bank.manifest.metrics.get("train", {}).get("trained_on"),
        }
    return {"kind": "backbone", "backbone": {"name": model}, "prompt": None}


def rows_of(models: Mapping[str, str | BackboneOf]) -> dict[str, str | None]:
    """Return the rows each model was trained on, by printed name; see ``trained_on``."""
    return {name: trained_on(describe_model(model)) for name, model in models.items()}


def evaluate_models(
    models: Mapping[str, str | BackboneOf],
    data: SuiteData,
    *,
    measures: Collection[str],
    device: str,
    progress: bool,
    done: Callable[[str, SuiteResults], object] | None = None,
    kept: KeptVectors | None = None,
) -> dict[str, SuiteResults]:
    """Evaluate the given models one after the other.

    Args:
        models: checkpoint, bundle or backbone by printed name.
        kept: has the vectors of their bare backbone.
    """
    banks: dict[Path, OnnxEncoder] = {}
    for model in models.values():
        if isinstance(model, str) and check_model(model).domain is not None:
            open_model(model, device=device, banks=banks)  # raises for an unknown domain before any work
    results, chosen = {}, choose_device(device)
    for name, model in models.items():
        encoder = open_model(model, device=device, banks=banks, kept=kept)
        click.echo(f"measuring {name}", err=True)
        results[name] = evaluate_suite(
            encoder,
            data,
            progress=progress,
            device=chosen,
            measures=measures,
        )
        if done is not None:
            done(name, results[name])
    return results


def save_record(folder: Path, name: str, model: str | BackboneOf, results: SuiteResults, device: str) -> None:
    """Write the record of a model's results into an existing, empty folder; see ``write_record``."""
    where, identity = environment(choose_device(device).type), identity_of_model(model)
    write_record(folder, name, results, model=describe_model(model), environment=where, identity=identity)


def identity_of_model(model: str | BackboneOf) -> str:
    """Return the identity of a checkpoint, empty for another model."""
    return identity_of(Path(model)) if isinstance(model, str) else ""


def record_folder(name: str) -> str:
    """Return a folder name for a model name: letters, digits, dots and dashes, cut to file system limits."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "model"


if __name__ == "__main__":
    run_stage(evaluate_stage)
