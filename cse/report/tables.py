"""Tables of the report: each table of the papers with this project's rows below, and the systems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_label, dev_of, value_of
from cse.evaluation.record import Record
from cse.evaluation.sts import SEVEN_TASKS
from cse.evaluation.table import settings_in_words
from cse.report.cells import Cell, Line, Table
from cse.report.figures import figure, task_value
from cse.report.systems import Spread, System
from cse.settings.load import flatten
from cse.settings.presets import HYPERPARAMETER, PaperRow, PublishedScore, rows, why_misprinted

_TITLES = {
    ("PromCSE", 1): "Semantic textual similarity",
    ("PromCSE", 2): "Domain shift: CxC-STS",
    ("PromCSE", 3): "Kinds of prompt",
    ("PromCSE", 4): "Margin of the energy-based hinge",
    ("PromCSE", 5): "Alignment and uniformity",
    ("PromCSE", 6): "Hyperparameters",
    ("PromCSE", 7): "Transfer tasks",
    ("DCPCSE", 1): "Semantic textual similarity",
    ("DCPCSE", 2): "Contrastive loss with MLM",
    ("DCPCSE", 3): "Hyperparameters, unsupervised",
    ("DCPCSE", 4): "Hyperparameters, supervised",
    ("D2CSE", 1): "Semantic textual similarity, unsupervised",
    ("D2CSE", 2): "Near-identical sentences",
    ("D2CSE", 3): "Rank of the right answer",
    ("D2CSE", 4): "Retrieval",
    ("D2CSE", 5): "Alignment and uniformity",
    ("D2CSE", 6): "Design of the framework",
    ("D2CSE", 7): "Hyperparameters",
    ("D2CSE", 8): "Semantic textual similarity, supervised",
}
_METRICS = {
    "spearman_x100": "Spearman * 100",
    "spearman_bootstrap_mean_x100": "mean of Spearman * 100 over samples",
    "spearman_bootstrap_std_x100": "its standard deviation over samples",
    "accuracy": "accuracy in percent",
    "recall@1": "percent",
    "recall@3": "percent",
    "recall@5": "percent",
    "cosine_similarity": "cosine",
    "rank_of_correct_answer": "rank, 1 is best",
    "alignment": "lower is better",
    "uniformity": "lower is better",
    HYPERPARAMETER: "value",
}
_HEADS = {
    "spearman_bootstrap_mean_x100": "CxC-STS mean",
    "spearman_bootstrap_std_x100": "CxC-STS std",
    "alignment": "alignment",
    "uniformity": "uniformity",
}


_PROMPTS = {"key_value": "key/value", "hidden_state": "hidden-state", "input": "input-layer"}
_WITHOUT_PROMPT = {"full": "every weight trained", "biases": "biases trained", "norms": "norms trained", "lora": "LoRA"}
_WORDS = ("setting", "model", "backbone", "source")


def paper_tables(systems: Sequence[System]) -> list[Table]:
    """Return every table of the three papers in order, with this project's rows below the published ones."""
    by_table = groupby(rows(), key=lambda row: (row.selector.paper, row.selector.table))
    return [_paper_table(*key, list(found), systems) for key, found in by_table]


def systems_table(systems: Sequence[System]) -> Table:
    """Return a table of the systems."""
    known = {found.measure for system in systems for record in system.records if (found := _dev_of(record))}
    dev_head = dev_label("score" if len(known) > 1 else next(iter(known), SPEARMAN))
    head = ("system", "backbone", "prompt", "data", "runs", "trained weights", "steps", dev_head)
    lines = []
    for system in systems:
        model = system.first.model
        facts = model.get("facts", {})
        weights = facts.get("parameters", {}).get("trained")
        dev = system.spread(lambda record: value_of(_dev_of(record)))
        words = (system.name, system.backbone, _prompt(model), system.data, system.runs)
        numbers = (
            Cell("-") if weights is None else Cell(f"{weights:,}", weights),
            Cell("-") if "steps" not in facts else Cell(f"{facts['steps']:,}", facts["steps"]),
            spread_cell(dev, 2),
        )
        lines.append(Line((*map(Cell, words), *numbers), own=True))
    caption = "Systems of this report. Mean ± sample standard deviation over seeds."
    return Table("systems", "Systems", caption, head, 5, tuple(lines))


def _dev_of(record: Record) -> DevScore | None:
    return dev_of(record.model.get("facts", {}))


def own_tables(systems: Sequence[System]) -> list[Table]:
    """Return the tables of what is in no paper: one of all scored pairs, and one of each of the user's own tasks."""
    pairs = _own_pairs(systems)
    tasks = dict.fromkeys(task for system in systems for task in system.first.scores.get("tasks", {}))
    own = [_task_table(number, task, systems) for number, task in enumerate(tasks, start=1)]
    return own if pairs is None else [pairs, *own]


def _own_pairs(systems: Sequence[System]) -> Table | None:
    scores = [(system, system.first.scores.get("sts", {})) for system in systems]
    tasks = dict.fromkeys(task for _, found in scores for task in found if task not in SEVEN_TASKS)
    lines = []
    for task in tasks:
        column = figure("spearman_x100", task)
        for system, found in scores:
            if task in found:
                words = (task, system.name, system.data, system.runs)
                pairs = found[task]["pairs"]
                spread = spread_cell(system.spread(column), 2, len(system.records))
                lines.append(Line((*map(Cell, words), Cell(f"{pairs:,}", pairs), spread), own=True))
    head = ("task", "system", "data", "runs", "pairs", "Spearman")
    caption = "Spearman * 100 on scored pairs that no paper prints; mean ± sample standard deviation over seeds."
    return Table("own-pairs", "Your own pairs", caption, head, 4, tuple(lines)) if lines else None


def _task_table(number: int, task: str, systems: Sequence[System]) -> Table:
    found = {system.name: system.first.scores.get("tasks", {}).get(task) for system in systems}
    scored = [system for system in systems if found[system.name]]
    columns = list(found[scored[0].name]["values"])
    lines = []
    for system in scored:
        words = map(Cell, (system.name, system.backbone, system.data, system.runs))
        spreads = [system.spread(task_value(task, name)) for name in columns]
        lines.append(Line((*words, *(spread_cell(spread, 2, len(system.records)) for spread in spreads)), own=True))
    setting = settings_in_words({system.name: found[system.name]["setting"] for system in scored})
    caption = f"Times 100; mean ± sample standard deviation over seeds. {setting}."
    head = ("system", "backbone", "data", "runs", *columns)
    return Table(f"task-{number}", f"Your task: {task}", caption, head, 4, tuple(lines))


def settings_table(systems: Sequence[System]) -> Table | None:
    """Return the settings that differ between systems, or None if there are not two to compare."""
    flat = {system.name: flatten(system.settings) for system in systems if system.settings}
    keys = dict.fromkeys(key for values in flat.values() for key in values if key != "train.seed")
    differing = [key for key in keys if len({str(values.get(key)) for values in flat.values()}) > 1]
    if len(flat) < 2 or not differing:
        return None
    lines = [Line((Cell(key), *(Cell(_plain(values.get(key))) for values in flat.values()))) for key in differing]
    caption = "Settings that differ between systems. All others are equal; full settings by system are below."
    return Table("differences", "Settings that differ", caption, ("setting", *flat), 1 + len(flat), tuple(lines))


def spread_cell(spread: Spread | None, digits: int, runs: int = 0) -> Cell:
    """Return mean ± standard deviation, and the number of runs if that is not all of ``runs``."""
    if spread is None:
        return Cell("-")
    deviation = "" if spread.std is None else f"± {spread.std:.{digits}f}"
    count = f"n = {len(spread.values)}" if runs and len(spread.values) != runs else ""
    return Cell(f"{spread.mean:.{digits}f}", spread.mean, deviation=" ".join(filter(None, (deviation, count))))


def _paper_table(paper: str, number: int, published: list[PaperRow], systems: Sequence[System]) -> Table:
    columns = list(dict.fromkeys((score.metric, score.dataset) for row in published for score in row.scores))
    notes: list[str] = []
    lines = [_published_line(row, columns, notes) for row in published]
    lines += [line for system in systems if (line := _system_line(system, columns)) is not None]
    return Table(
        key=f"{paper.lower()}-{number}",
        title=f"{paper} table {number}: {_TITLES[paper, number]}",
        caption=_caption(columns, systems),
        head=(*_WORDS, *(_head(*column) for column in columns)),
        words=len(_WORDS),
        lines=tuple(lines),
        notes=tuple(notes),
    )


def _published_line(row: PaperRow, columns: Sequence[tuple[str, str]], notes: list[str]) -> Line:
    scores = {(score.metric, score.dataset): score for score in row.scores}
    cells = []
    for column in columns:
        score = scores.get(column)
        if score is None:
            cells.append(Cell("-"))
            continue
        note = ""
        if score.is_average and row.misprinted:
            why = why_misprinted(row)
            note = _note(notes, f"printed {score.value:.2f}; the mean of the printed scores is {row.mean:.2f}", why)
        elif score.note:
            note = _note(notes, score.note, "")
        cells.append(Cell(_printed(score), float(score.value), note))
    selector = row.selector
    source = "published" if row.scores[0].source.startswith("unmarked") else f"published, {row.scores[0].source}"
    return Line((*map(Cell, (selector.setting, selector.model, selector.backbone, source)), *cells))


def _system_line(system: System, columns: Sequence[tuple[str, str]]) -> Line | None:
    if all(metric == HYPERPARAMETER for metric, _ in columns) and not system.first.model.get("prompt"):
        return None
    spreads = [system.spread(figure(*column)) for column in columns]
    if not any(spreads):
        return None
    source = f"this project: {system.data}, {system.runs}"
    words = map(Cell, (system.setting, system.name, system.backbone, source))
    runs = len(system.records)
    return Line((*words, *(_own_cell(s, c, runs) for s, c in zip(spreads, columns, strict=True))), own=True)


def _own_cell(spread: Spread | None, column: tuple[str, str], runs: int) -> Cell:
    metric, _ = column
    if spread is not None and metric == HYPERPARAMETER:
        value = spread.values[0]
        return Cell(_plain(value), float(value))
    if spread is not None and metric == "rank_of_correct_answer" and spread.std is None:
        return Cell(f"{spread.mean:g}", spread.mean)
    return spread_cell(spread, _digits(metric), runs)


def _note(notes: list[str], text: str, why: str) -> str:
    text = f"{text}; {why}" if why else text
    if text not in notes:
        notes.append(text)
    return str(notes.index(text) + 1)


def _caption(columns: Sequence[tuple[str, str]], systems: Sequence[System]) -> str:
    """Return units, and the settings behind this project's numbers."""
    metrics = dict.fromkeys(metric.partition(" to query")[0] for metric, _ in columns)
    parts = list(dict.fromkeys(_METRICS.get(metric, metric) for metric in metrics))
    quoted = next((metric.partition(" to query ")[2] for metric, _ in columns if " to query " in metric), "")
    if quoted:
        parts.append(f"query {quoted}")
    space = "space_test" if ("alignment", "STS-B test") in columns else "space"
    keys = {
        "spearman_bootstrap_mean_x100": "cxc", "alignment": space, "recall@1": "retrieval",
        "rank_of_correct_answer": "retrieval", "accuracy": "transfer",
    }  # fmt: skip
    for metric in metrics:
        key = keys.get(metric, "")
        found = (system.first.scores[key].get("setting") for system in systems if key in system.first.scores)
        setting = next(found, None)
        if setting:
            parts.append(f"own rows: {setting}")
    return "; ".join(dict.fromkeys(parts))


def _head(metric: str, dataset: str) -> str:
    if metric in _HEADS:
        return _HEADS[metric]
    if metric.startswith("recall@"):
        return metric
    if metric.startswith("rank"):
        return dataset.partition("query ")[2]
    return "Avg." if "average" in dataset or "7 tasks" in dataset else dataset.replace("_", " ")


def _digits(metric: str) -> int:
    return 4 if metric in ("alignment", "uniformity") or metric.startswith("cosine") else 2


def _printed(score: PublishedScore) -> str:
    if isinstance(score.value, bool) or score.metric == HYPERPARAMETER:
        return _plain(score.value)
    return (
        f"{score.value:.2f}"
        if _digits(score.metric) == 2 and not score.metric.startswith("rank")
        else f"{score.value:g}"
    )


def _prompt(model: dict[str, Any]) -> str:
    prompt = model.get("prompt")
    if not prompt:
        return _WITHOUT_PROMPT.get(str(model.get("parameters")), "none")
    shared = ", shared by the layers" if prompt.get("shared") else ""
    return f"{prompt['length']} {_PROMPTS.get(prompt['kind'], prompt['kind'])}{shared}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
