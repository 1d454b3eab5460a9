"""``cse report``: compare records with the published scores on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from cse.stages.common import ABLATIONS, RECORDS, REPORT


@click.command(epilog="\b\nExamples:\n  cse report\n  cse report data/evaluation runs/evaluation --out report")
@click.argument("records", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--ablations",
    type=click.Path(path_type=Path),
    default=ABLATIONS,
    show_default=True,
    help="Results of `cse ablate`.",
)
@click.option("--out", type=click.Path(path_type=Path), default=REPORT, show_default=True, help="Output folder.")
def report(records: Sequence[Path], ablations: Path, out: Path) -> None:
    """Write a report that compares records with the papers.

    Writes report.html (one file, opens from disk), report.md, and the figures as SVG, PNG and CSV.

    RECORDS are folders written by `cse evaluate --out` or the pipeline; subfolders are searched. Runs that differ only
    in their seed are shown as one system.
    """
    from cse.outputs import Kind, check_folder, publish_folder
    from cse.report.ablations import read_ablations
    from cse.report.page import PAGE_FILE, make_report, write_report
    from cse.report.systems import find_records, group

    check_folder(out, Kind.REPORT)
    made = make_report(group(find_records(records or [RECORDS])), read_ablations(ablations))
    with publish_folder(out, Kind.REPORT) as folder:
        write_report(made, folder)
    runs = sum(len(system.records) for system in made.systems)
    click.echo(f"{out / PAGE_FILE}: {len(made.systems)} systems, {runs} records, {len(made.pictures)} pictures")
