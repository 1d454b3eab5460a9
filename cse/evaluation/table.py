"""Every table of scores as plain text, Markdown or LaTeX: one per measure and per task, below its setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cse.errors import one_line
from cse.evaluation.measures import Averaged

if TYPE_CHECKING:  # a table of rows needs no encoder
    from cse.evaluation.suite import SuiteResults

_LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# by field of the results: title, unit, digits
_MEASURES = {
    "sts": ("STS", "Spearman * 100", 2),
    "cxc": ("CxC-STS", "Spearman * 100", 2),
    "transfer": ("Transfer", "accuracy in percent", 2),
    "retrieval": ("Retrieval", "percent", 2),
    "space": ("Alignment and uniformity", "unit length", 4),
    "space_test": ("Alignment and uniformity", "unit length", 4),
}
_TITLES = {"text": "{} ({})\n", "markdown": "**{}** ({})\n\n", "latex": "% {} ({})\n"}


def format_suite(
    models: Mapping[str, SuiteResults], style: str = "text", trained_on: Mapping[str, str | None] | None = None
) -> str:
    """Format every measure of models on the same data, and the rows that each was trained on, as far as known."""
    reads = {name: reads_in_words(results.reads) for name, results in models.items()}
    differing = reads if len(set(reads.values())) > 1 else {}
    return _measures(models, style) + _lines("reads", differing, style) + _lines("trained on", trained_on or {}, style)


def reads_in_words(reads: Mapping[str, Any]) -> str:
    """Return how an encoder reads a text, such as ``256 tokens, query: 'query: '``; empty if not known."""
    said = [f"{reads['max_length']} tokens"] if "max_length" in reads else []
    texts = sorted(reads.get("texts", {}).items())
    return ", ".join([*said, *(f"{role}: {text!r}" for role, text in texts if text)])


def settings_in_words(settings: Mapping[str, str]) -> str:
    """Return how several models were measured: parts that they share, then what is a model's own."""
    split = {name: setting.split("; ") for name, setting in settings.items()}
    shared = [part for part in next(iter(split.values())) if all(part in parts for parts in split.values())]
    rest = {name: ", ".join(part for part in parts if part not in shared) for name, parts in split.items()}
    own = [f"{name}: {said or 'no task texts'}" for name, said in rest.items()] if any(rest.values()) else []
    return "; ".join([*shared, *own])


def format_table(models: Mapping[str, Averaged], style: str = "text") -> str:
    """Return scores with tasks as columns, the published ones first, and the average last if there are several."""
    first = next(iter(models.values()))
    tasks = list(dict.fromkeys([*(task for task in first.published if task in first.tasks), *first.tasks]))
    average = [first.average_name] if len(tasks) > 1 else []
    rows = [["model", *tasks, *average]]
    for name, results in models.items():
        scores = [*(results.figures[task] for task in tasks), *(results.average() for _ in average)]
        rows.append([name, *(f"{score:.2f}" for score in scores)])
    return format_rows(rows, style)


def format_rows(rows: list[list[str]], style: str = "text") -> str:
    """Return any table as text; the first row is the head, the first column names a row."""
    shown = [[one_line(cell) for cell in row] for row in rows]
    return {"text": _text, "markdown": _markdown, "latex": _latex}[style](shown)


def _lines(verb: str, of_models: Mapping[str, str | None], style: str) -> str:
    lines = [f"{_comment(style)}{name}: {verb} {what}\n" for name, what in of_models.items() if what]
    return "\n" + "".join(lines) if lines else ""


def _comment(style: str) -> str:
    return "% " if style == "latex" else ""


def _measures(models: Mapping[str, SuiteResults], style: str) -> str:
    parts = []
    tables = [(*told, {name: getattr(one, field) for name, one in models.items()}) for field, told in _MEASURES.items()]
    for task in dict.fromkeys(task for results in models.values() for task in results.tasks):
        tables.append((one_line(task), "times 100", 2, {name: one.tasks.get(task) for name, one in models.items()}))
    for title, unit, digits, scores in tables:
        found = {name: score for name, score in scores.items() if score is not None}
        if not found:
            continue
        setting = settings_in_words({name: score.setting for name, score in found.items()})
        above = _TITLES[style].format(title, f"{unit}; {setting}" if setting else unit)
        if isinstance(next(iter(found.values())), Averaged):
            parts.append(above + format_table(found, style))
            continue
        rows = {
            name: {label: f"{value:.{digits}f}" for label, value in one.values.items()} for name, one in found.items()
        }
        if "uniformity" in next(iter(rows.values())):  # which depends on it
            rows = {name: {"pooling": models[name].pooling or "not known"} | cells for name, cells in rows.items()}
        labels = dict.fromkeys(label for cells in rows.values() for label in cells)  # some have not all
        head = ["model", *(label.replace("_", " ") for label in labels)]
        body = [[name, *(cells.get(label, "-") for label in labels)] for name, cells in rows.items()]
        parts.append(above + format_rows([head, *body], style))
    common = [gap for gap in next(iter(models.values())).missing if all(gap in one.missing for one in models.values())]
    lines = [f"{_comment(style)}not measured: {gap}\n" for gap in common]
    for name, results in models.items():
        lines += [f"{_comment(style)}not measured of {name}: {gap}\n" for gap in results.missing if gap not in common]
    sts = {name: results.sts for name, results in models.items() if results.sts is not None}
    if len(parts) == 1 and sts and not lines:
        return format_table(sts, style)  # no other table to tell it from
    return "\n".join([*parts, *(["".join(lines)] if lines else [])])


def _text(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells))
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    return "\n".join(lines) + "\n"


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]) + "\n"


def _latex(rows: list[list[str]]) -> str:
    head, *lines = (" & ".join(map(_escape_latex, row)) + r" \\" for row in rows)
    above = [rf"\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*above, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escape_latex(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda match: _LATEX_SPECIAL.get(match[0], f"\\{match[0]}"), text)
