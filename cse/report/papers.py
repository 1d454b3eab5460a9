"""Every table of the papers as published, with this project's rows below, read from records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from cse.evaluation.record import RETRIEVAL_FILE, Record
from cse.report.systems import Spread, System, number_at, number_in
from cse.report.tables import Table, in_cell, plain
from cse.settings.presets import AVERAGES, HYPERPARAMETER, PaperRow, PublishedScore, rows, why_misprinted

Column = tuple[str, str]  # metric and dataset, as published
_STS = "Semantic textual similarity"
_SHAPE = "Alignment and uniformity"
_TITLES = {
    "PromCSE": (
        _STS, "Domain shift: CxC-STS", "Kinds of prompt", "Margin of the energy-based hinge", _SHAPE, "Hyperparameters",
        "Transfer tasks",
    ),
    "DCPCSE": (
        _STS, "Contrastive loss with MLM", "Hyperparameters, unsupervised", "Hyperparameters, supervised",
    ),
    "D2CSE": (
        f"{_STS}, unsupervised", "Near-identical sentences", "Rank of the right answer", "Retrieval", _SHAPE,
        "Design of the framework", "Hyperparameters", f"{_STS}, supervised",
    ),
}  # fmt: skip
_HYPERPARAMETERS = {
    "batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "epochs": "train.epochs",
    "prompt_length": "prompt.length",
    "cls_prompt": "prompt.cls",
    "masking_ratio": "objective.replaced_tokens.mask_share",
    "lambda": "objective.replaced_tokens.weight",
    "multi_task_mlm": "objective.masked_lm.weight",
}
_WORDS = ("setting", "model", "backbone", "source")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class _Metric(NamedTuple):
    """What a table says of a metric; ``measured``: the scores of a record whose setting stands in the caption."""

    unit: str
    head: str = ""
    measured: str = ""
    digits: int = 2


_METRICS = {
    "spearman_x100": _Metric("Spearman * 100"),
    "spearman_bootstrap_mean_x100": _Metric("mean of Spearman * 100 over samples", "CxC-STS mean", "cxc"),
    "spearman_bootstrap_std_x100": _Metric("its standard deviation over samples", "CxC-STS std"),
    "accuracy": _Metric("accuracy in percent", measured="transfer"),
    **{f"recall@{cut}": _Metric("percent", f"recall@{cut}", "retrieval") for cut in (1, 3, 5)},
    "cosine_similarity": _Metric("cosine", digits=4),
    "rank_of_correct_answer": _Metric("rank, 1 is best", measured="retrieval"),
    "alignment": _Metric("lower is better", "alignment", "space", 4),
    "uniformity": _Metric("lower is better", "uniformity", digits=4),
    HYPERPARAMETER: _Metric("value"),
}


def paper_tables(systems: Sequence[System]) -> list[Table]:
    """Return every table of the three papers in order, with this project's rows below the published ones."""
    by_table = groupby(rows(), key=lambda row: (row.selector.paper, row.selector.table))
    return [_paper_table(*key, list(found), systems) for key, found in by_table]


def _paper_table(paper: str, number: int, published: list[PaperRow], systems: Sequence[System]) -> Table:
    columns = list(dict.fromkeys((score.metric, score.dataset) for row in published for score in row.scores))
    notes: list[str] = []
    lines = [_published_line(row, columns, notes) for row in published]
    lines += [line for system in systems if (line := _system_line(system, columns)) is not None]
    title = f"{paper} table {number}: {_TITLES[paper][number - 1]}"
    head, caption = (*_WORDS, *(_head(*column) for column in columns)), _caption(columns, systems)
    return Table(f"{paper.lower()}-{number}", title, caption, head, lines, len(_WORDS), notes, printed=len(published))


def _published_line(row: PaperRow, columns: Sequence[Column], notes: list[str]) -> tuple[str, ...]:
    scores = {(score.metric, score.dataset): score for score in row.scores}
    cells = []
    for column in columns:
        score = scores.get(column)
        if score is None:
            cells.append("-")
            continue
        note = score.note
        if score.is_average and row.misprinted:
            why = why_misprinted(row)
            note = f"printed {score.value:.2f}; the mean of the printed scores is {row.mean:.2f}" + (why and f"; {why}")
        if note and note not in notes:
            notes.append(note)
        cells.append(_printed(score) + (str(notes.index(note) + 1).translate(_RAISED) if note else ""))
    selector = row.selector
    source = "published" if row.scores[0].source.startswith("unmarked") else f"published, {row.scores[0].source}"
    return (selector.setting, selector.model, selector.backbone, source, *cells)


def _system_line(system: System, columns: Sequence[Column]) -> tuple[str, ...] | None:
    if all(metric == HYPERPARAMETER for metric, _ in columns) and not system.first.model.get("prompt"):
        return None
    spreads = [system.spread(figure(*column)) for column in columns]
    if not any(spreads):
        return None
    cells = [_own_cell(s, c[0], len(system.records)) for s, c in zip(spreads, columns, strict=True)]
    return (system.setting, system.name, system.backbone, f"this project: {system.data}, {system.runs}", *cells)


def _own_cell(spread: Spread | None, metric: str, runs: int) -> str:
    if spread is not None and metric == HYPERPARAMETER:
        return plain(spread.values[0])
    if spread is not None and metric == "rank_of_correct_answer" and spread.std is None:
        return f"{spread.mean:g}"
    return in_cell(spread, _of(metric).digits, runs)


def _of(metric: str) -> _Metric:
    return _METRICS[metric.partition(" to query")[0]]


def _caption(columns: Sequence[Column], systems: Sequence[System]) -> str:
    """Return units, and the settings behind this project's numbers."""
    metrics = dict.fromkeys(_of(metric) for metric, _ in columns)
    parts = [metric.unit for metric in metrics]
    parts += [f"query {metric.partition(' to query ')[2]}" for metric, _ in columns if " to query " in metric]
    for metric in metrics:
        key = "space_test" if metric.measured == "space" and ("alignment", "STS-B test") in columns else metric.measured
        found = (system.first.scores[key].get("setting") for system in systems if key in system.first.scores)
        if setting := next(found, None):
            parts.append(f"own rows: {setting}")
    return "; ".join(dict.fromkeys(parts))


def _head(metric: str, dataset: str) -> str:
    if head := _of(metric).head:
        return head
    if metric.startswith("rank"):
        return dataset.partition("query ")[2]
    return "Avg." if "average" in dataset or "7 tasks" in dataset else dataset.replace("_", " ")


def _printed(score: PublishedScore) -> str:
    if isinstance(score.value, bool) or score.metric == HYPERPARAMETER:
        return plain(score.value)
    two = _of(score.metric).digits == 2 and not score.metric.startswith("rank")
    return f"{score.value:.2f}" if two else f"{score.value:g}"


def figure(metric: str, dataset: str) -> Callable[[Record], float | bool | None]:
    """Return a function that reads a column's number from a record, or None if it was not measured.

    An average over some of the tasks is never read as the column ``Avg.``.
    """
    average = dataset in AVERAGES
    if metric == HYPERPARAMETER:
        return lambda record: _hyperparameter(record, dataset)
    if metric.startswith("cosine_similarity"):
        return lambda record: _cosine(record, dataset.removesuffix(" (correct)"))
    if metric == "rank_of_correct_answer":
        return lambda record: _rank(record, dataset)
    if metric == "spearman_x100":
        return number_at(*(("Avg.",) if average else ("sts", dataset, "all")))
    if metric == "accuracy":
        return number_at("transfer", *(("Avg.",) if average else ("transfer", dataset, "accuracy")))
    if metric.startswith("spearman_bootstrap"):
        return number_at("cxc", "std" if "std" in metric else "mean")
    if metric in ("alignment", "uniformity"):
        return number_at("space_test" if dataset == "STS-B test" else "space", metric)
    return number_at("retrieval", metric)


def _hyperparameter(record: Record, name: str) -> float | bool | None:
    if name not in _HYPERPARAMETERS:
        return None
    value = number_in(record.model, "facts", "settings", *_HYPERPARAMETERS[name].split("."))
    return value if value is None or name != "multi_task_mlm" else value > 0


def _rank(record: Record, dataset: str) -> float | None:
    """Return the rank of the answer named by the column: ``..., query "Q" -> "A"``."""
    quoted = [_letters(text) for text in re.findall(r'"([^"]*)"', dataset)]
    found = (
        row for row in record.table(RETRIEVAL_FILE) if [_letters(row["query"]), _letters(row["partner"])] == quoted
    )
    return next((int(row["rank"]) for row in found), None)


def _cosine(record: Record, text: str) -> float | None:
    """Return the cosine of a near-identical sentence, whatever its punctuation: papers leave out SentEval's spaces."""
    cosines = record.scores.get("retrieval", {}).get("near_identical", {})
    return next((value for key, value in cosines.items() if _letters(key) == _letters(text)), None)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
