"""``cse ablate``: an ablation of the papers around your settings; each cell is a DVC experiment.

Cells run one by one in DVC's throwaway copy of the repository, which shares the cache, so the working tree stays
untouched. A cell whose experiment exists is not run again, and a killed training resumes from its last saved state.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from cse.cli.options import parse_overrides
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_of
from cse.files import fingerprint, write_sealed
from cse.outputs import Kind, publish_folder
from cse.settings import Settings, load_settings
from cse.settings.load import PARAMS_FILE, flatten
from cse.settings.spaces import Grid, GridCell, ablation_names, load_ablation
from cse.stages.common import ABLATIONS, SCRATCH, SCRATCH_VARIABLE
from flows.processes import CommandError, run_dvc
from flows.repository import experiment, git, json_at, paths_left_behind, project_folder

_ALWAYS = {"evaluation.compare_backbone": False}  # the same for every cell


@dataclass(frozen=True)
class CellRun:
    """A cell with a seed.

    Attributes:
        name: experiment name; depends on settings, seed and uncommitted code.
    """

    cell: GridCell
    seed: int
    changes: dict[str, Any]
    name: str


@click.command(
    epilog="\b\nAblations:\n"
    + "".join(f"  {name:14} {load_ablation(name).about}\n" for name in ablation_names())
    + "\b\nExamples:\n  cse ablate prompt-length --values 4,12,20 --seeds 42,43\n"
    "  cse ablate margin -s data.max_rows=20000\n  dvc exp show --only-changed\n  cse report"
)
@click.argument("name", metavar="ABLATION")
@click.option("--values", metavar="NUMBERS", help="Comma-separated numbers to use instead of the papers'.")
@click.option("--seeds", default="42", show_default=True, metavar="NUMBERS", help="Comma-separated seeds.")
@click.option("-s", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a setting of every cell.")
@click.option("--again", is_flag=True, help="Re-run cells that already have an experiment (after a data change).")
@click.option("--out", type=click.Path(path_type=Path), default=ABLATIONS, show_default=True, help="Output folder.")
def ablate(name: str, values: str | None, seeds: str, overrides: Sequence[str], again: bool, out: Path) -> None:
    """Train and score the cells of an ablation.

    Cells vary the system in params.yaml; each is a DVC experiment (`dvc exp show`, `dvc exp apply`). Scores, a figure
    and its data are written after each cell; `cse report` compares them with the published ones. To resume a killed
    ablation, run the same command again.
    """
    grid = load_ablation(name)
    base = parse_overrides(overrides)
    settings = load_settings(PARAMS_FILE, base)
    root = project_folder("cse ablate")
    base |= paths_left_behind(settings, root)
    cells = grid.grid(settings, None if values is None else _numbers(values, "--values"))
    wanted = _numbers(seeds, "--seeds")
    # all cells before the next seed, to have a figure early
    runs = [_run(grid, cell, seed, base, root) for seed in wanted for cell in cells]
    found: dict[str, dict[str, float]] = {}
    failed: dict[str, str] = {}
    with tqdm(runs, unit="cell", disable=not sys.stderr.isatty()) as bar:
        for run in bar:
            bar.set_description(f"{run.cell.label}, seed {run.seed}")
            revision = None if again else experiment(run.name, root)
            if revision is None:
                try:
                    revision = _execute(run, root, again)
                except CommandError as error:
                    failed[run.name] = next((line for line in error.last_lines if "error:" in line), str(error))
                    continue
            found[run.name] = _scores(revision, root)
            _write(
                grid,
                settings,
                cells,
                runs,
                found,
                json_at(root, revision, Path("data/metrics/prepare.json")),
                out / name,
            )
            _say(f"{run.cell.label}, seed {run.seed}: {_headline(found[run.name])}")
    for run_name, reason in failed.items():
        _say(f"{run_name}: {reason}")
    if found:
        click.echo(_table(cells, runs, found))
        click.echo(f"{out / name}: scores, figure and its data; `cse report` compares them with the published ones")
    if failed:
        raise CseError(
            f"ablation {name}: {len(failed)} of {len(runs)} cells failed (logs in {_log(runs[0], root).parent}); "
            "run the same command to retry them"
        )


def _run(grid: Grid, cell: GridCell, seed: float, base: dict[str, Any], root: Path) -> CellRun:
    changes = {**_ALWAYS, **base, **cell.changes, "train.seed": seed}
    whole = flatten(load_settings(PARAMS_FILE, changes).model_dump(mode="json"))  # refuses what the key does not take
    state = {"settings": whole, "code": git(root, "diff", "HEAD", "--", ".", f":!{PARAMS_FILE}")}
    label = re.sub(r"[^a-z0-9.]+", "-", cell.label.lower()).strip("-.")
    return CellRun(cell, int(seed), changes, f"{grid.name}-{label}-s{seed}-{fingerprint(state)[:8]}")


def _execute(run: CellRun, root: Path, again: bool) -> str:
    """Run a cell as an experiment and return its revision."""
    options = [part for key, value in run.changes.items() for part in ("-S", set_param(key, value))]
    if again:
        options.append("--force")
    log = _log(run, root)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", buffering=1) as stream:  # can be read while the cell runs
        run_dvc(
            ["exp", "run", "--temp", "--name", run.name, *options],
            root,
            lambda line: stream.write(f"{line}\n"),
            {SCRATCH_VARIABLE: str((root / SCRATCH).resolve())},
        )
    revision = experiment(run.name, root)
    if revision is None:
        raise CommandError("dvc", 0, [f"error: DVC made no experiment {run.name}; see {log}"])
    return revision


def _scores(revision: str, root: Path) -> dict[str, float]:
    """Return a run's scores by task, with the dev score."""
    scores: dict[str, float] = json_at(root, revision, Path("data/metrics/evaluation.json")).get("trained", {})
    dev = dev_of(json_at(root, revision, Path("data/metrics/train.json")))
    return scores if dev is None else scores | {"dev": dev.value}


def _write(
    grid: Grid,
    settings: Settings,
    cells: Sequence[GridCell],
    runs: Sequence[CellRun],
    found: dict[str, dict[str, float]],
    counts: dict[str, Any],
    folder: Path,
) -> None:
    """Write the results so far: ``cells.json``, and a figure as SVG, PNG and CSV."""
    from cse.report.ablations import CELLS_FILE, read_ablation
    from cse.report.pictures import draw_ablation

    tree = {
        "ablation": grid.name,
        "title": grid.title,
        "backbone": Path(settings.backbone.name).name,
        "data": f"{_source(settings)}, {counts.get('rows', 0):,} {settings.data.view}",
        "cells": [
            {
                "label": cell.label,
                "value": cell.value,
                "runs": {run.seed: found[run.name] for run in runs if run.cell is cell and run.name in found},
                "experiments": {run.seed: run.name for run in runs if run.cell is cell and run.name in found},
            }
            for cell in cells
        ],
    }
    with publish_folder(folder, Kind.ABLATION) as target:
        write_sealed(target / CELLS_FILE, tree)
        picture = draw_ablation(read_ablation(target / CELLS_FILE))
        if picture is not None:
            (target / f"{grid.name}.svg").write_text(picture.svg, encoding="utf-8")
            (target / f"{grid.name}.png").write_bytes(picture.png)
            (target / f"{grid.name}.csv").write_text(picture.data, encoding="utf-8")


def _source(settings: Settings) -> str:
    from cse.data.read import find_data_file

    if settings.data.source == "files":
        return find_data_file(Path(settings.data.train_path), "data.train_path").name
    return settings.data.hub_id if settings.data.source == "hub" else "sample"


def _table(cells: Sequence[GridCell], runs: Sequence[CellRun], found: dict[str, dict[str, float]]) -> str:
    """Return mean ± standard deviation of each cell's headline scores."""
    from cse.evaluation.table import format_rows

    columns = [name for name in dict.fromkeys(key for scores in found.values() for key in scores) if "(" not in name]
    rows = [["cell", *columns, "seeds"]]
    for cell in cells:
        scores = [found[run.name] for run in runs if run.cell is cell and run.name in found]
        rows.append(
            [cell.label, *(_spread([s[name] for s in scores if name in s]) for name in columns), str(len(scores))]
        )
    return format_rows(rows, "text")


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def _headline(scores: dict[str, float]) -> str:
    from cse.evaluation.measures import headline_name

    shown = [name for name in (headline_name(scores), "dev") if name in scores]
    return ", ".join(f"{name} {scores[name]:.2f}" for name in shown) or "no scores"


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise CseError(f"{option} {text}: separate numbers with commas, for instance 4,12,20") from None
    return [int(number) if number.is_integer() else number for number in dict.fromkeys(numbers)]


def set_param(key: str, value: Any) -> str:
    """Return an argument of ``dvc exp run --set-param``; ``++`` also adds a key that params.yaml lacks."""
    return f"++{key}={_hydra(value)}"


def _hydra(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _log(run: CellRun, root: Path) -> Path:
    return root / SCRATCH / "ablate" / f"{run.name}.log"


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
