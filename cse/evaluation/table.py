"""Tables of similarity scores as plain text, Markdown or LaTeX."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

from cse.errors import CseError, nearest, one_line
from cse.evaluation.sts import AGGREGATES, SEVEN_TASKS, StsResults

TableFormat = Literal["text", "markdown", "latex"]
TABLE_FORMATS: tuple[TableFormat, ...] = ("text", "markdown", "latex")
_LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def format_table(models: Mapping[str, StsResults], style: str = "text") -> str:
    """Return scores with tasks as columns: for each model a row of ``all``, with ``mean`` and ``wmean`` below it.

    ``mean`` and ``wmean`` are omitted if no task has subsets, the average if there is only one task.

    Args:
        models: results by display name.
        style: ``text`` (aligned columns), ``markdown`` or ``latex`` (a ``tabular`` for the booktabs package).

    Returns:
        The table, two decimals, ``-`` for an undefined score; ends with a newline.

    Raises:
        CseError: unknown style, no models, or models scored on different tasks.
    """
    if style not in TABLE_FORMATS:
        raise CseError(f"format {style!r}: choose one of {', '.join(TABLE_FORMATS)}{nearest(style, TABLE_FORMATS)}")
    if not models:
        raise CseError("table: no results to show; evaluate a model first")
    tasks = _columns(models)
    average = [next(iter(models.values())).average_name] if len(tasks) > 1 else []
    rows = [["model", *tasks, *average]]
    aggregates = AGGREGATES if any(map(_has_subsets, models.values())) else AGGREGATES[:1]
    for name, results in models.items():
        for aggregate in aggregates:
            scores = [getattr(results.tasks[task], aggregate) for task in tasks]
            scores += [results.average(aggregate) for _ in average]
            rows.append([name if aggregate == "all" else aggregate, *(_number(score) for score in scores)])
    below = {1 + index for index in range(len(rows) - 1) if index % len(aggregates)}
    return format_rows(rows, style, below)


def format_rows(rows: list[list[str]], style: str, below: Collection[int] = ()) -> str:
    """Return any table as text; the first row is the head, the first column names a row.

    Args:
        rows: cells.
        style: one of ``TABLE_FORMATS``.
        below: numbers of rows that continue the row above.
    """
    shown = [[one_line(cell) for cell in row] for row in rows]
    return {"text": _text, "markdown": _markdown, "latex": _latex}[style](shown, below)


def _columns(models: Mapping[str, StsResults]) -> list[str]:
    (first, results), *others = models.items()
    for name, other in others:
        if set(other.tasks) != set(results.tasks):
            difference = ", ".join(sorted(set(other.tasks) ^ set(results.tasks)))
            raise CseError(f"table: {first} and {name} were not scored on the same tasks ({difference}); score both")
    known = [task for task in SEVEN_TASKS if task in results.tasks]
    return known + [task for task in results.tasks if task not in SEVEN_TASKS]


def _has_subsets(results: StsResults) -> bool:
    return any(len(score.subsets) > 1 for score in results.tasks.values())


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _text(rows: list[list[str]], below: Collection[int]) -> str:
    rows = [[f"  {row[0]}", *row[1:]] if index in below else row for index, row in enumerate(rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join(lines) + "\n"


def _markdown(rows: list[list[str]], below: Collection[int]) -> str:
    """Return a pipe table; a row below another bears its name too, since Markdown has no indent to say so."""
    named, above = [], ""
    for index, (name, *cells) in enumerate(rows):
        above = above if index in below else name
        named.append([f"{above}, {name}" if index in below else name, *cells])
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in named]
    rule = "|---|" + "---:|" * (len(rows[0]) - 1)
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def _latex(rows: list[list[str]], below: Collection[int]) -> str:
    escaped = [[_escape_latex(cell) for cell in row] for row in rows]
    head, *body = escaped
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
    for index, row in enumerate(body, start=1):
        name = rf"\quad {row[0]}" if index in below else row[0]
        lines.append(" & ".join([name, *row[1:]]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escape_latex(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda match: _LATEX_SPECIAL.get(match[0], f"\\{match[0]}"), text)
