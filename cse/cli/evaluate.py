"""``cse evaluate``: score any models; write tables, JSON, and records for ``cse report``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.cli.options import PATH, check_given, json_writer, settings_from, settings_options
from cse.errors import CseError
from cse.settings import Settings
from cse.stages.common import CHECKPOINT, PREPARED

if TYPE_CHECKING:
    from cse.data.suite import SuiteData
    from cse.data.tasks.kinds import Task
    from cse.evaluation.suite import SuiteResults

_EPILOG = """\b
Examples:
  cse evaluate
  cse evaluate data/checkpoint data/bundle --format latex
  cse evaluate sentence-transformers/all-MiniLM-L6-v2 --data SentEval/data/downstream
  cse evaluate data/bank data/bank:auto
  cse evaluate data/checkpoint --suite full --data SentEval/data/downstream --cxc cxc_sts_test.csv
  cse evaluate prompts-42=runs/a/checkpoint prompts-43=runs/b/checkpoint --suite sts,cxc \\
      --data SentEval/data/downstream --cxc cxc_sts_test.csv --out runs/evaluation
  cse evaluate data/checkpoint --task my-questions --task my-search
"""


@click.command(epilog=_EPILOG)
@click.argument("models", nargs=-1, metavar="[[NAME=]MODEL]...")
@settings_options
@click.option("--data", type=PATH, help="SentEval's downstream folder, scored pairs, or prepared data.")
@click.option(
    "--suite",
    metavar="MEASURES",
    help="full, or a comma-separated list from sts,cxc,transfer,retrieval,space,tasks. [default: evaluation.measures]",
)
@click.option(
    "--task",
    "tasks",
    type=PATH,
    multiple=True,
    help="Your own task, a file or a folder: pairs, triplets, labelled texts or a retrieval collection; repeatable. "
    "Without --data and --suite, nothing else is measured.",
)
@click.option("--cxc", type=PATH, help="CSV of CxC-STS that includes the captions.")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "markdown", "latex"]),
    default="text",
    show_default=True,
    help="How to print the table.",
)
@click.option("--json", "json_path", type=PATH, help="Also write the scores here.")
@click.option("--out", type=PATH, help="Write one record per model here, for `cse report`.")
def evaluate(
    models: Sequence[str], params: Path, overrides: Sequence[str], data: Path | None, suite: str | None,
    tasks: Sequence[Path], cxc: Path | None, style: str,
    json_path: Path | None, out: Path | None,
) -> None:  # fmt: skip
    """Score models on STS, on everything the papers measure, or on your own tasks.

    A model is a checkpoint folder, a bundle folder, a bank's domain (BANK:DOMAIN, or BANK for all of them), or a bare
    backbone given by folder or hub id; NAME is its name in tables. STS scores (semantic textual similarity) are
    Spearman * 100. Without MODELS and options, this runs the pipeline's stage: the trained checkpoint and its backbone.
    """
    settings = settings_from(params, overrides, optional=True)
    asked = (*models, *tasks, data, suite, cxc, json_path, out)
    if style == "text" and all(value is None for value in asked):
        check_given(str(CHECKPOINT), PREPARED)
        from cse.stages.evaluate import evaluate_stage

        evaluate_stage(settings)
        return
    from cse.runtime.bank import meaning_of

    given = _named(models or [str(CHECKPOINT)])
    for model in given.values():
        if not meaning_of(model).whole_bank:  # which stands for all of its domains
            check_given(model, bundles=True)
    own = _own_tasks(tasks, settings)
    if data is None and (suite or cxc or not tasks):
        check_given(prepared=PREPARED)
    from cse.evaluation.suite import measures_from
    from cse.evaluation.table import format_suite
    from cse.stages.evaluate import evaluate_models, rows_of
    from cse.stages.open_model import each_domain

    named, device, progress = each_domain(given), settings.evaluation.device, sys.stderr.isatty()
    measures = measures_from(suite) if suite else tuple(settings.evaluation.measures)
    if tasks:
        measures = tuple(dict.fromkeys((*measures, "tasks"))) if suite or data or cxc else ("tasks",)
    if cxc is not None and "cxc" not in measures:
        raise CseError("--cxc: needs its measure; add --suite cxc or --suite full")
    found = _suite_data(data, cxc, settings, alone=measures == ("tasks",) and bool(tasks) and data is None)
    write_json, save = json_writer(json_path), _record_writer(out, named, device)
    results = evaluate_models(
        named, found.with_tasks(own), measures=measures, device=device, progress=progress,
        done=save,
    )  # fmt: skip
    click.echo(format_suite(results, style, trained_on=rows_of(named)), nl=False)
    write_json({name: result.to_dict() for name, result in results.items()})
    if out is not None:
        click.echo(f"{out}: {len(results)} records; `cse report {out}` compares them with the papers", err=True)


def _record_writer(out: Path | None, models: Mapping[str, str], device: str) -> Callable[[str, SuiteResults], None]:
    """Refuse a folder that cannot take the models' records; return what writes one, if there is a folder."""
    from cse.outputs import Kind, check_folder, check_holder, publish_folder
    from cse.stages.evaluate import record_folder, save_record

    if out is None:
        return lambda name, result: None
    folders: dict[str, str] = {}
    for name in models:
        other = folders.setdefault(record_folder(name), name)
        if other != name:
            both = f"{other} and {name} would both be written to {out / record_folder(name)}"
            raise CseError(f"--out {out}: {both}; rename one with NAME=MODEL")
    check_holder(out, Kind.RECORD)
    for place in folders:
        check_folder(out / place, Kind.RECORD)

    def save(name: str, result: SuiteResults) -> None:
        with publish_folder(out / record_folder(name), Kind.RECORD) as folder:
            save_record(folder, name, models[name], result, device)

    return save


def _named(models: Sequence[str]) -> dict[str, str]:
    """Return models by display name: ``NAME=MODEL``, or the model as written."""
    named: dict[str, str] = {}
    for text in models:
        name, equals, model = text.partition("=")
        name, model = (name, model) if equals and name and not Path(text).exists() else (text, text)
        if name in named:
            raise CseError(f"{name}: given twice; write NAME=MODEL with a different name for each")
        named[name] = model
    return named


def _own_tasks(paths: Sequence[Path], settings: Settings) -> list[Task]:
    from cse.data.tasks.read import Reading, read_tasks

    how = Reading(settings.data.encoding, settings.data.score_range, setting="--task")
    tasks = []
    for path in paths:
        found = read_tasks(path, how)
        if not found:
            raise CseError(f"--task {path}: an empty folder; put a task into it")
        tasks += found
    return tasks


def _suite_data(data: Path | None, cxc: Path | None, settings: Settings, *, alone: bool) -> SuiteData:
    """Return evaluation data from prepared data, a SentEval folder, or a file of scored pairs; none if ``alone``."""
    from cse.data.store import PreparedData
    from cse.data.suite import SuiteData, only_pairs, open_suite, read_suite
    from cse.data.tasks.read import Reading, read_scored
    from cse.data.tasks.store import TASKS_FILE

    if alone:
        return SuiteData()
    if data is None or (data / TASKS_FILE).is_file():
        suite = open_suite(PreparedData(data or PREPARED))
    elif data.is_file():
        suite = only_pairs([read_scored(data, Reading(settings.data.encoding, settings.data.score_range))])
    elif data.exists():
        suite = read_suite(data)
    else:
        raise CseError(f"--data {data}: no such file or folder")
    return suite if cxc is None else suite.with_captions(cxc)
