"""The report as a self-contained HTML page, with figure files beside it."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from ruamel.yaml import YAML

from cse.errors import shown_on_page
from cse.evaluation.record import Record
from cse.report.comparisons import comparison_table, comparisons, in_words
from cse.report.papers import paper_tables
from cse.report.pictures import INK, Picture, draw_all
from cse.report.systems import System
from cse.report.tables import Table, own_tables, settings_table, systems_table

PAGE_FILE, PICTURES = "report.html", "pictures"
TITLE = "Sentence embeddings: evaluation report"
_WIDTH = re.compile(r'<svg[^>]* width="([\d.]+)pt"')
_WIDE = 440  # points: a picture wider than that scrolls sideways on a phone instead of shrinking


@dataclass(frozen=True)
class Report:
    """The content of the report.

    Attributes:
        tables: of the papers.
        verdict: lines that stand above everything; the first is its headline.
        further: tables below the verdict.
    """

    systems: Sequence[System]
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    verdict: str = ""
    further: Sequence[Table] = ()


def make_report(
    systems: Sequence[System],
    *,
    papers: bool = True,
    verdict: str = "",
    further: Sequence[Table] = (),
) -> Report:
    """Draw the figures and lay out the tables, those of the papers too unless told otherwise; see ``Report``."""
    tables = paper_tables(systems) if papers else []
    if compared := comparisons(systems):
        verdict, further = verdict or in_words(compared), [*further, comparison_table(compared)]
    return Report(systems, draw_all(systems), tables, verdict, further)


def write_report(report: Report, folder: Path) -> None:
    """Write page and figures (SVG, PNG, CSV) to an existing, empty folder."""
    (folder / PAGE_FILE).write_text(as_html(report), encoding="utf-8")
    (folder / PICTURES).mkdir()
    for picture in report.pictures:
        path = folder / PICTURES / picture.name
        path.with_suffix(".svg").write_text(picture.svg, encoding="utf-8")
        path.with_suffix(".png").write_bytes(picture.png)
        path.with_suffix(".csv").write_bytes(_csv(picture))


def as_html(report: Report) -> str:
    """Return the page, with style, script and figures inline and no external links."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=shown_on_page
    )
    environment.filters |= {"inline": _inline, "base64": lambda picture: base64.b64encode(_csv(picture)).decode()}
    environment.tests["wide"] = lambda picture: float(_WIDTH.findall(picture.svg)[0]) > _WIDE
    css, script = (Markup(_packaged(name)) for name in ("report.css", "report.js"))
    return environment.from_string(_packaged(PAGE_FILE)).render(_content(report), css=css, script=script)


def _packaged(name: str) -> str:
    return files("cse.report").joinpath(name).read_text("utf-8")


def _content(report: Report) -> dict[str, Any]:
    """Return what the template shows."""
    systems = report.systems
    headline, _, more = report.verdict.partition("\n")
    records = [record for system in systems for record in system.records]
    return vars(report) | {
        "title": TITLE,
        "headline": headline,
        "more": more,
        "introduction": f"Systems: {len(systems)}, from evaluated models: {len(records)}. Scores are measured by this "
        "project unless marked as published.",
        "systems": systems_table(systems),
        "own": own_tables(systems),
        "differences": settings_table(systems),
        "settings": [(system.name, _yaml(system.settings)) for system in systems if system.settings],
        "environments": _environments(records),
        "gaps": _gaps(records),
    }


def _csv(picture: Picture) -> bytes:
    return picture.data.encode("utf-8", errors="replace")


def _inline(picture: Picture) -> Markup:
    """Return a drawing to inline in a page: unique ids, and the reader's colour for text and axes."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", svg)
    return Markup(re.sub(INK, "currentColor", svg, flags=re.IGNORECASE))


def _environments(records: Sequence[Record]) -> list[list[tuple[str, str]]]:
    """Return each environment once, with the records made in it; a checkpoint's training is one line of it."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record in records:
        known, facts = dict(record.environment), record.model.get("facts", {})
        if {"environment", "precision"} <= facts.keys():
            trained = [facts["precision"], *(f"{name} {value}" for name, value in facts["environment"].items())]
            known["training"] = ", ".join(trained)
        found.setdefault(tuple(known.items()), []).append(record.name)
    return [[("records", ", ".join(names)), *facts] for facts, names in found.items()]


def _gaps(records: Sequence[Record]) -> list[str]:
    gaps: dict[str, list[str]] = {}
    for record in records:
        for gap in record.scores.get("missing", []):
            gaps.setdefault(gap, []).append(record.name)
    return [f"{gap}: {', '.join(names)}" for gap, names in gaps.items()]


def _yaml(tree: dict[str, Any]) -> str:
    stream = io.StringIO()
    YAML().dump(tree, stream)
    return stream.getvalue()
