"""The full evaluation as text, Markdown or LaTeX: one table per measure, below its setting."""

from __future__ import annotations

from collections.abc import Mapping

from cse.data.transfer import TRANSFER_TASKS
from cse.errors import printable
from cse.evaluation.retrieval import CUTS
from cse.evaluation.space import SpaceScore
from cse.evaluation.suite import SuiteResults, reads_in_words
from cse.evaluation.table import format_rows, format_table
from cse.evaluation.tasks.table import task_parts


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


def _lines(verb: str, of_models: Mapping[str, str | None], style: str) -> str:
    comment = "% " if style == "latex" else ""
    lines = [f"{comment}{name}: {verb} {what}\n" for name, what in of_models.items() if what]
    return "\n" + "".join(lines) if lines else ""


def _measures(models: Mapping[str, SuiteResults], style: str) -> str:
    parts = []
    scores = {name: results.sts for name, results in models.items() if results.sts is not None}
    if scores:
        parts.append(_titled("STS", "Spearman * 100", format_table(scores, style), style))
    for title, rows, setting in (
        _cxc(models),
        _transfer(models),
        _retrieval(models),
        _space(models, "space"),
        _space(models, "space_test"),
        *task_parts({name: results.tasks for name, results in models.items()}),
    ):
        if rows:
            parts.append(_titled(title, setting, format_rows(rows, style), style))
    comment = "% " if style == "latex" else ""
    common = [gap for gap in next(iter(models.values())).missing if all(gap in one.missing for one in models.values())]
    lines = [f"{comment}not measured: {gap}\n" for gap in common]
    for name, results in models.items():
        lines += [f"{comment}not measured of {name}: {gap}\n" for gap in results.missing if gap not in common]
    if lines:
        parts.append("".join(lines))
    elif len(parts) == 1 and scores:
        return format_table(scores, style)  # no other table to tell it from
    return "\n".join(parts)


_Part = tuple[str, list[list[str]], str]


def _cxc(models: Mapping[str, SuiteResults]) -> _Part:
    scores = {name: results.cxc for name, results in models.items() if results.cxc is not None}
    rows = [[name, f"{s.mean:.2f}", f"{s.std:.2f}", f"{s.all_pairs:.2f}"] for name, s in scores.items()]
    setting = next((score.describe() for score in scores.values()), "")
    return "CxC-STS", [["model", "mean", "std", "all pairs"], *rows] if rows else [], f"Spearman * 100; {setting}"


def _transfer(models: Mapping[str, SuiteResults]) -> _Part:
    scores = {name: results.transfer for name, results in models.items() if results.transfer is not None}
    if not scores:
        return "Transfer", [], ""
    first = next(iter(scores.values()))
    tasks = [name for name in TRANSFER_TASKS if name in first.tasks]
    average = [first.average_name] if len(tasks) > 1 else []
    rows = [
        [name, *(f"{score.tasks[task].accuracy:.2f}" for task in tasks), *(f"{score.average:.2f}" for _ in average)]
        for name, score in scores.items()
    ]
    return "Transfer", [["model", *tasks, *average], *rows], f"accuracy in percent; {first.describe()}"


def _retrieval(models: Mapping[str, SuiteResults]) -> _Part:
    scores = {name: results.retrieval for name, results in models.items() if results.retrieval is not None}
    rows = [[name, *(f"{score.recall[cut]:.2f}" for cut in CUTS)] for name, score in scores.items()]
    setting = next((score.describe() for score in scores.values()), "")
    head = ["model", *(f"recall@{cut}" for cut in CUTS)]
    return "Retrieval", [head, *rows] if rows else [], f"percent; {setting}"


def _space(models: Mapping[str, SuiteResults], which: str) -> _Part:
    found: dict[str, SpaceScore | None] = {name: getattr(results, which) for name, results in models.items()}
    scores = {name: score for name, score in found.items() if score is not None}
    rows = [
        [name, models[name].pooling or "not known", f"{score.alignment:.4f}", f"{score.uniformity:.4f}"]
        for name, score in scores.items()
    ]
    setting = next((score.describe() for score in scores.values()), "")
    head = ["model", "pooling", "alignment", "uniformity"]
    return "Alignment and uniformity", [head, *rows] if rows else [], f"unit length; {setting}"


def _titled(title: str, setting: str, table: str, style: str) -> str:
    line = {"text": f"{title} ({setting})", "markdown": f"**{title}** ({setting})\n", "latex": f"% {title} ({setting})"}
    return f"{line[style]}\n{table}"


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
        lines.append(f"Retrieval by {name}: {len(examples)} of {results.retrieval.queries} queries, worst first\n")
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
