"""Tables of the report: what one is made of, the systems, the user's own tasks, the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_label, dev_of, value_of
from cse.evaluation.record import Record
from cse.evaluation.sts import SEVEN_TASKS
from cse.evaluation.table import settings_in_words
from cse.report.systems import Spread, System, number_at
from cse.settings.load import flatten

_PROMPTS = {"key_value": "key/value", "hidden_state": "hidden-state", "input": "input-layer"}
_WITHOUT_PROMPT = {"full": "every weight trained", "biases": "biases trained", "norms": "norms trained", "lora": "LoRA"}


@dataclass(frozen=True)
class Table:
    """A table with ``words`` columns of text before those of numbers, and footnotes in order.

    ``printed``: how many lines a paper printed; where it printed some, those below are this project's.
    """

    key: str
    title: str
    caption: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    words: int
    notes: Sequence[str] = ()
    printed: int = 0


def in_cell(spread: Spread | None, digits: int, runs: int = 0) -> str:
    """Return mean ± standard deviation, and the number of runs if that is not all of ``runs``."""
    if spread is None:
        return "-"
    deviation = "" if spread.std is None else f" ± {spread.std:.{digits}f}"
    count = f" n = {len(spread.values)}" if runs and len(spread.values) != runs else ""
    return f"{spread.mean:.{digits}f}{deviation}{count}"


def plain(value: Any) -> str:
    """Return a setting in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def systems_table(systems: Sequence[System]) -> Table:
    """Return a table of the systems."""
    known = {found.measure for system in systems for record in system.records if (found := _dev_of(record))}
    dev_head = dev_label("score" if len(known) > 1 else next(iter(known), SPEARMAN))
    head = ("system", "backbone", "prompt", "data", "runs", "trained weights", "steps", dev_head)
    lines = []
    for system in systems:
        model = system.first.model
        facts = model.get("facts", {})
        words = (system.name, system.backbone, _prompt(model), system.data, system.runs)
        trained, steps = facts.get("parameters", {}).get("trained"), facts.get("steps")
        if system.fitted and not trained:  # a map behind the model is fitted, not trained
            trained = "fitted"
        dev = system.spread(lambda record: value_of(_dev_of(record)))
        lines.append(
            (*words, *(f"{n:,}" if isinstance(n, int) else n or "-" for n in (trained, steps)), in_cell(dev, 2))
        )
    caption = "Systems of this report. Mean ± sample standard deviation over seeds."
    return Table("systems", "Systems", caption, head, lines, 5)


def own_tables(systems: Sequence[System]) -> list[Table]:
    """Return the tables of what is in no paper: one of all scored pairs, and one of each of the user's own tasks."""
    scores = [(system, system.first.scores.get("sts", {})) for system in systems]
    lines = []
    for task in dict.fromkeys(task for _, found in scores for task in found if task not in SEVEN_TASKS):
        for system, found in scores:
            if task in found:
                score = in_cell(system.spread(number_at("sts", task, "all")), 2, len(system.records))
                lines.append((task, system.name, system.data, system.runs, f"{found[task]['pairs']:,}", score))
    head = ("task", "system", "data", "runs", "pairs", "Spearman")
    caption = "Spearman * 100 on scored pairs that no paper prints; mean ± sample standard deviation over seeds."
    tasks = dict.fromkeys(task for system in systems for task in system.first.scores.get("tasks", {}))
    own = [_task_table(number, task, systems) for number, task in enumerate(tasks, start=1)]
    return [Table("own-pairs", "Your own pairs", caption, head, lines, 4), *own] if lines else own


def _task_table(number: int, task: str, systems: Sequence[System]) -> Table:
    found = {system.name: system.first.scores.get("tasks", {}).get(task) for system in systems}
    scored = [system for system in systems if found[system.name]]
    columns = dict.fromkeys(name for system in scored for name in found[system.name]["values"])  # some have not all
    lines = []
    for system in scored:
        spreads = [system.spread(number_at("tasks", task, "values", name)) for name in columns]
        scores = (in_cell(spread, 2, len(system.records)) for spread in spreads)
        lines.append((system.name, system.backbone, system.data, system.runs, *scores))
    setting = settings_in_words({system.name: found[system.name]["setting"] for system in scored})
    caption = f"Times 100; mean ± sample standard deviation over seeds. {setting}."
    head = ("system", "backbone", "data", "runs", *columns)
    return Table(f"task-{number}", f"Your task: {task}", caption, head, lines, 4)


def settings_table(systems: Sequence[System]) -> Table | None:
    """Return the settings that differ between systems, or None if there are not two to compare."""
    flat = {system.name: flatten(system.settings) for system in systems if system.settings}
    keys = dict.fromkeys(key for values in flat.values() for key in values if key != "train.seed")
    differing = [key for key in keys if len({str(values.get(key)) for values in flat.values()}) > 1]
    if len(flat) < 2 or not differing:
        return None
    lines = [(key, *(plain(values.get(key)) for values in flat.values())) for key in differing]
    caption = "Settings that differ between systems. All others are equal; full settings by system are below."
    return Table("differences", "Settings that differ", caption, ("setting", *flat), lines, 1 + len(flat))


def _dev_of(record: Record) -> DevScore | None:
    return dev_of(record.model.get("facts", {}))


def _prompt(model: dict[str, Any]) -> str:
    prompt = model.get("prompt")
    if not prompt:
        return _WITHOUT_PROMPT.get(str(model.get("parameters")), "none")
    shared = ", shared by the layers" if prompt.get("shared") else ""
    return f"{prompt['length']} {_PROMPTS.get(prompt['kind'], prompt['kind'])}{shared}"
