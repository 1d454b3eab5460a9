"""Every table of scores as plain text, Markdown or LaTeX: one per measure and per task, below its setting."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cse.errors import CseError, nearest, one_line, printable
from cse.evaluation.sts import AGGREGATES, SEVEN_TASKS, StsResults

if TYPE_CHECKING:  # a table of rows needs no encoder
    from cse.evaluation.suite import SuiteResults

TableFormat = Literal["text", "markdown", "latex"]
TABLE_FORMATS: tuple[TableFormat, ...] = ("text", "markdown", "latex")
_LATEX_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# by field of the results: title, unit, digits
_MEASURES = {
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
    """Format every measure; all models were evaluated on the same data.

    Args:
        models: results by display name.
        style: ``text``, ``markdown`` or ``latex``.
        trained_on: the rows that each model was trained on, as far as known.
    """
    reads = {name: reads_in_words(results.reads) for name, results in models.items()}
    differing = reads if len(set(reads.values())) > 1 else {}
    return _measures(models, style) + _lines("reads", differing, style) + training_lines(trained_on or {}, style)


def training_lines(trained_on: Mapping[str, str | None], style: str = "text") -> str:
    """Return lines that say which rows each model was trained on; empty if nothing is known."""
    return _lines("trained on", trained_on, style)


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


def format_examples(models: Mapping[str, SuiteResults], count: int) -> str:
    """Format retrieval queries with their nearest sentences, worst first.

    Args:
        models: results by display name.
        count: queries per model.
    """
    lines = []
    for name, results in models.items():
        if results.retrieval is None:
            continue
        examples = sorted(results.retrieval.examples, key=lambda example: -example.rank)[:count]
        lines.append(
            f"Retrieval by {name}: {len(examples)} of {results.retrieval.facts['queries']} queries, worst first\n"
        )
        for example in examples:
            lines.append(f"  query   {example.query}")
            lines += [
                f"  {place} {cosine:.4f} {'*' if sentence == example.partner else ' '} {sentence}"
                for place, (sentence, cosine) in enumerate(example.nearest, start=1)
            ]
            if example.rank > len(example.nearest):
                lines.append(f"  {example.rank} {'':6} * {example.partner}")
            lines.append("")
    return printable("\n".join(lines))


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
            scores = [results.tasks[task].values.get(aggregate) for task in tasks]
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


def _lines(verb: str, of_models: Mapping[str, str | None], style: str) -> str:
    lines = [f"{_comment(style)}{name}: {verb} {what}\n" for name, what in of_models.items() if what]
    return "\n" + "".join(lines) if lines else ""


def _comment(style: str) -> str:
    return "% " if style == "latex" else ""


def _measures(models: Mapping[str, SuiteResults], style: str) -> str:
    sts = _scored({name: results.sts for name, results in models.items()})
    table = format_table(sts, style) if sts else ""
    parts = [_TITLES[style].format("STS", "Spearman * 100") + table] if sts else []
    for field, (title, unit, digits) in _MEASURES.items():
        found = _scored({name: getattr(results, field) for name, results in models.items()})
        rows = {name: _cells(score.values, digits) for name, score in found.items()}
        if field.startswith("space"):
            rows = {name: {"pooling": models[name].pooling or "not known"} | cells for name, cells in rows.items()}
        if rows:
            parts.append(_below(title, f"{unit}; {next(iter(found.values())).setting}", rows, style))
    for task in dict.fromkeys(task for results in models.values() for task in results.tasks):
        scores = _scored({name: results.tasks.get(task) for name, results in models.items()})
        setting = settings_in_words({name: score.setting for name, score in scores.items()})
        rows = {name: _cells(score.values) for name, score in scores.items()}
        parts.append(_below(one_line(task), f"times 100; {setting}", rows, style))
    common = [gap for gap in next(iter(models.values())).missing if all(gap in one.missing for one in models.values())]
    lines = [f"{_comment(style)}not measured: {gap}\n" for gap in common]
    for name, results in models.items():
        lines += [f"{_comment(style)}not measured of {name}: {gap}\n" for gap in results.missing if gap not in common]
    if len(parts) == 1 and sts and not lines:
        return table  # no other table to tell it from
    return "\n".join([*parts, *(["".join(lines)] if lines else [])])


def _scored(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {name: score for name, score in scores.items() if score is not None}


def _below(title: str, setting: str, rows: Mapping[str, Mapping[str, str]], style: str) -> str:
    """Return a table below its title: a row per model, the columns of the first."""
    head = ["model", *(name.replace("_", " ") for name in next(iter(rows.values())))]
    body = [[name, *cells.values()] for name, cells in rows.items()]
    return _TITLES[style].format(title, setting) + format_rows([head, *body], style)


def _cells(values: Mapping[str, float], digits: int = 2) -> dict[str, str]:
    return {name: f"{value:.{digits}f}" for name, value in values.items()}


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
