"""``cse report`` and ``cse compare``: records next to published scores, and next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cse.cli.options import PATH, json_writer
from cse.errors import CseError
from cse.stages.common import RECORDS, REPORT


@click.command(epilog="\b\nExamples:\n  cse report\n  cse report data/evaluation runs/evaluation --out report")
@click.argument("records", nargs=-1, type=PATH)
@click.option("--out", type=PATH, default=REPORT, show_default=True, help="Output folder.")
def report(records: Sequence[Path], out: Path) -> None:
    """Write a report that compares records with the papers.

    Writes report.html (one file, opens from disk), and the figures as SVG, PNG and CSV.

    RECORDS are folders written by `cse evaluate --out` or the pipeline; subfolders are searched. Runs that differ only
    in their seed are shown as one system.
    """
    from cse.outputs import Kind, check_folder, publish_folder
    from cse.report.page import PAGE_FILE, make_report, write_report
    from cse.report.systems import find_records, group

    check_folder(out, Kind.REPORT)
    made = make_report(group(find_records(records or [RECORDS])))
    with publish_folder(out, Kind.REPORT) as folder:
        write_report(made, folder)
    runs = sum(len(system.records) for system in made.systems)
    click.echo(f"{out / PAGE_FILE}: {len(made.systems)} systems, {runs} records, {len(made.pictures)} pictures")


_COMPARE_EXAMPLES = """\b
Examples:
  cse evaluate before=sentence-transformers/all-MiniLM-L6-v2 after=data/checkpoint --task my-task --out runs/evaluation
  cse compare runs/evaluation
  cse compare runs/evaluation --baseline before --json comparison.json
"""


@click.command(epilog=_COMPARE_EXAMPLES)
@click.argument("records", nargs=-1, type=PATH)
@click.option("--baseline", help="System to compare all others with; default: each one's bare backbone.")
@click.option("--json", "json_path", type=PATH, help="Also write the comparisons here.")
def compare(records: Sequence[Path], baseline: str | None, json_path: Path | None) -> None:
    """Say which models are better, worse, or not known to differ, on your own tasks and on STS.

    RECORDS are folders written by `cse evaluate --out` or the pipeline; subfolders are searched. Runs that differ only
    in their seed are one system. Differences come with a 95 % interval and a p value, by a paired bootstrap over
    queries, pairs or texts, and over seeds.
    """
    from cse.evaluation.comparison import compared_rows
    from cse.evaluation.table import format_rows
    from cse.report.comparisons import comparisons
    from cse.report.systems import find_records, group

    write_json = json_writer(json_path)
    found = comparisons(group(find_records(records or [RECORDS])), baseline)
    if not found:
        raise CseError("nothing to compare: evaluate two models on the same task, with --out")
    tree = []
    for before, after, results in found:
        click.echo(f"{after.name} ({after.runs}) against {before.name} ({before.runs})")
        click.echo(format_rows(compared_rows(results), "text"))
        rows = [one.to_dict() for one in results]
        tree.append({"before": before.name, "after": after.name, "results": rows})
    write_json({"comparisons": tree})
