"""The report as a self-contained HTML page, and as Markdown with figure files."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from ruamel.yaml import YAML

from cse.errors import one_line, printable, shown_on_page
from cse.evaluation.record import RETRIEVAL_FILE, Record
from cse.evaluation.table import format_rows
from cse.report.canvas import INK, Picture
from cse.report.cells import Cell, Table
from cse.report.comparisons import comparison_table
from cse.report.pictures import draw_all
from cse.report.systems import System
from cse.report.tables import own_tables, paper_tables, settings_table, systems_table

PAGE_FILE, MARKDOWN_FILE, PICTURES = "report.html", "report.md", "pictures"
TITLE = "Sentence embeddings: evaluation report"
_MARKUP = re.compile(r"[\\`~$\[\]<>&]|\*(?=\S)|(?<=\S)\*|(?<!\w)_|_(?!\w)")
EXAMPLES = 12  # queries per system


@dataclass(frozen=True)
class Report:
    """The content of the report.

    Attributes:
        tables: of the papers.
        verdict: lines that stand above everything; the first is its headline.
    """

    systems: Sequence[System]
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    verdict: str = ""
    proof: Sequence[Picture] = ()
    further: Sequence[Table] = ()

    @property
    def introduction(self) -> str:
        """A sentence on what is compared."""
        runs = sum(len(system.records) for system in self.systems)
        return (
            f"{len(self.systems)} systems from {runs} evaluated models. Scores are measured by this project "
            "unless marked as published."
        )


def make_report(
    systems: Sequence[System],
    *,
    papers: bool = True,
    verdict: str = "",
    proof: Sequence[Picture] = (),
    further: Sequence[Table] = (),
) -> Report:
    """Draw the figures and lay out the tables, those of the papers too unless told otherwise.

    Args:
        papers: whether to show the papers' tables.
        verdict: see ``Report``.
        proof: see ``Report``.
        further: see ``Report``.
    """
    tables = paper_tables(systems) if papers else []
    return Report(systems, draw_all(systems), tables, verdict, proof, further)


def write_report(report: Report, folder: Path) -> None:
    """Write page, Markdown and figures (SVG, PNG, CSV) to an existing, empty folder."""
    (folder / PAGE_FILE).write_text(as_html(report), encoding="utf-8")
    (folder / MARKDOWN_FILE).write_text(as_markdown(report), encoding="utf-8")
    (folder / PICTURES).mkdir()
    for picture in (*report.proof, *report.pictures):
        path = folder / PICTURES / picture.name
        path.with_suffix(".svg").write_text(picture.svg, encoding="utf-8")
        path.with_suffix(".png").write_bytes(picture.png)
        path.with_suffix(".csv").write_bytes(_csv(picture))


def as_html(report: Report) -> str:
    """Return the page, with style, script and figures inline and no external links."""
    here = files("cse.report")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=shown_on_page)
    template = environment.from_string(here.joinpath("report.html").read_text("utf-8"))

    def shown(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
        return [
            {"name": p.name, "title": p.title, "caption": p.caption, "inline": Markup(_inline(p)),
             "csv": base64.b64encode(_csv(p)).decode()}
            for p in pictures
        ]  # fmt: skip

    examples = _examples(report.systems)
    return template.render(
        title=TITLE,
        names=("system", "model"),
        css=Markup(here.joinpath("report.css").read_text("utf-8")),
        script=Markup(here.joinpath("report.js").read_text("utf-8")),
        introduction=report.introduction,
        verdict=report.verdict.partition("\n"),
        systems=systems_table(report.systems),
        own=_own_tables(report),
        proof=shown(report.proof),
        further=report.further,
        pictures=shown(report.pictures),
        tables=report.tables,
        examples=examples,
        differences=settings_table(report.systems),
        settings=[{"name": s.name, "text": _yaml(s.settings)} for s in report.systems if s.settings],
        environments=_environments(report.systems),
        gaps=_gaps(report.systems),
        sections=_sections(report, bool(examples)),
    )


def as_markdown(report: Report) -> str:
    """Return the report as Markdown; figures are linked from the folder next to it."""
    parts = [f"# {TITLE}\n"]
    if report.verdict:
        headline, _, more = report.verdict.partition("\n")
        parts.append(f"**{_words(headline)}**\n\n```\n{printable(more)}\n```\n")
    parts += map(_markdown_picture, report.proof)
    parts += map(_markdown_table, report.further)
    parts += [report.introduction + "\n", _markdown_table(systems_table(report.systems))]
    parts += map(_markdown_table, _own_tables(report))
    if report.pictures:
        parts.append("## Figures\n")
    parts += map(_markdown_picture, report.pictures)
    if report.tables:
        parts.append(
            "## Tables of the papers\n\nRows in bold are from this project: mean ± sample standard deviation.\n"
        )
    parts += [_markdown_table(table) for table in report.tables]
    parts.append("## Settings\n")
    differences = settings_table(report.systems)
    if differences is not None:
        parts.append(_markdown_table(differences))
    known = [system for system in report.systems if system.settings]
    parts += [f"### {_words(s.name)}\n\n```yaml\n{printable(_yaml(s.settings))}```\n" for s in known]
    parts.append("## Environment\n")
    for environment in _environments(report.systems):
        facts = [("records", environment["names"]), *environment["facts"]]
        parts.append("\n".join(f"- {_words(name)}: {_words(str(value))}" for name, value in facts) + "\n")
    gaps = _gaps(report.systems)
    if gaps:
        parts.append("### Not measured\n\n" + "\n".join(f"- {_words(gap)}" for gap in gaps) + "\n")
    return "\n".join(parts)


def _own_tables(report: Report) -> list[Table]:
    """Return the tables of the user's own pairs and tasks, and of what is better than what."""
    compared = comparison_table(report.systems)
    return [*own_tables(report.systems), *([] if compared is None else [compared])]


def _markdown_picture(picture: Picture) -> str:
    title, caption = _words(picture.title), _words(picture.caption)
    return f"### {title}\n\n{caption}\n\n![{title}]({PICTURES}/{picture.name}.svg)\n"


def _markdown_table(table: Table) -> str:
    body = [[_markdown_cell(cell, line.own) for cell in line.cells] for line in table.lines]
    notes = "".join(f"\n{number}. {_words(note)}" for number, note in enumerate(table.notes, start=1))
    caption = f"{_words(table.caption)}\n\n" if table.caption else ""
    head = list(map(_words, table.head))
    return f"### {_words(table.title)}\n\n{caption}{format_rows([head, *body], 'markdown')}{notes}\n"


def _markdown_cell(cell: Cell, own: bool) -> str:
    text = _words(f"{cell.text} {cell.deviation}")
    text = f"**{text}**" if own and text != "-" else text
    return f"{text}<sup>{cell.note}</sup>" if cell.note else text


def _words(text: str) -> str:
    """Return text escaped for a line of Markdown; tables escape pipes."""
    return _MARKUP.sub(r"\\\g<0>", one_line(text))


def _csv(picture: Picture) -> bytes:
    return picture.data.encode("utf-8", errors="replace")


def _inline(picture: Picture) -> str:
    """Return a drawing to inline in a page: unique ids, and the reader's colour for text and axes."""
    svg = picture.svg[picture.svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{picture.name}-", svg)
    return re.sub(INK, "currentColor", svg, flags=re.IGNORECASE)


def _sections(report: Report, examples: bool) -> list[dict[str, str]]:
    found = [("verdict", "Verdict")] if report.verdict else []
    found += [(picture.name, picture.title) for picture in report.proof]
    found += [(table.key, table.title) for table in report.further]
    found += [("systems-section", "Systems")]
    found += [(table.key, table.title) for table in _own_tables(report)]
    found += [(picture.name, picture.title) for picture in report.pictures]
    found += [(table.key, table.title) for table in report.tables]
    found += [("examples", "Retrieval examples")] if examples else []
    found += [("settings", "Settings"), ("environment", "Environment")]
    return [{"key": key, "title": title} for key, title in found]


def _examples(systems: Sequence[System]) -> list[dict[str, Any]]:
    shown = []
    for system in systems:
        queries: dict[tuple[str, str], dict[str, Any]] = {}
        for row in system.first.table(RETRIEVAL_FILE):
            example = queries.setdefault(
                (row["query"], row["partner"]),
                {"query": row["query"], "partner": row["partner"], "rank": int(row["rank"]), "nearest": []},
            )
            correct = row["correct"] == "1"
            example["nearest"].append({"sentence": row["candidate"], "cosine": row["cosine"], "correct": correct})
        worst = sorted(queries.values(), key=lambda example: -example["rank"])[:EXAMPLES]
        for example in worst:
            example["missed"] = not any(near["correct"] for near in example["nearest"])
        if worst:
            shown.append({"name": system.name, "examples": worst})
    return shown


def _environments(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Return each environment once, with the records made in it."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for system in systems:
        for record in system.records:
            facts = record.environment | _training_of(record)
            found.setdefault(tuple(facts.items()), []).append(record.name)
    return [{"names": ", ".join(names), "facts": list(facts)} for facts, names in found.items()]


def _training_of(record: Record) -> dict[str, str]:
    """Return a checkpoint's training environment in one line, if recorded."""
    facts = record.model.get("facts", {})
    if not {"environment", "precision"} <= facts.keys():
        return {}
    parts = [facts["precision"], *(f"{name} {value}" for name, value in facts["environment"].items())]
    return {"training": ", ".join(parts)}


def _gaps(systems: Sequence[System]) -> list[str]:
    gaps: dict[str, list[str]] = {}
    for system in systems:
        for record in system.records:
            for gap in record.scores.get("missing", []):
                gaps.setdefault(gap, []).append(record.name)
    return [f"{gap}: {', '.join(names)}" for gap, names in gaps.items()]


def _yaml(tree: dict[str, Any]) -> str:
    stream = io.StringIO()
    YAML().dump(tree, stream)
    return stream.getvalue()
