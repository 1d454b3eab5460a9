"""What the report of an adaptation shows besides scores: the ladder, and the texts that a model helped or harmed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cse.adapt.ladder import BARE, FULL, HEADED, IN_WORDS, PROMPTS, Ladder, shares_backbone
from cse.adapt.run import Adapted
from cse.bench.data import DataFolders
from cse.data.store import PreparedData
from cse.data.tasks.kinds import LabelledTexts, Retrieval, Task
from cse.data.tasks.store import OWN, open_tasks
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.report.canvas import COLOURS, Picture, canvas
from cse.report.cells import Cell, Line, Table

MOST = 20  # texts in a table


def draw_ladder(ladder: Ladder, measure: str) -> Picture | None:
    """Draw the score on held-out rows of each kind of model, and the minutes it took; None if nothing was scored."""
    rungs = [rung for rung in ladder.rungs.values() if rung.dev is not None]
    if not rungs:
        return None
    own = any(not shares_backbone(rung.system) for rung in rungs)
    with canvas(8.2, 0.5 * len(rungs) + 0.8) as (figure, save):
        axes = figure.subplots()
        scores = [rung.dev or 0.0 for rung in rungs]
        colours = [COLOURS[0] if shares_backbone(rung.system) else COLOURS[1] for rung in rungs]
        bars = axes.barh([IN_WORDS[rung.system] for rung in rungs], scores, color=colours)
        behind = [HEADED[PROMPTS], HEADED[FULL]]  # their time is what they take beyond the model below
        told = [f"{r.dev:.1f}, {'+' if r.system in behind else ''}{r.seconds / 60:.1f} min" for r in rungs]
        axes.bar_label(bars, told, padding=4, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(min(0.0, *scores), 1.25 * max(*scores, 1e-9))
        axes.set_xlabel(f"{measure} on held-out rows")
        return save(
            "ladder",
            "What each step reached, and its time",
            f"{measure} times 100 on held-out rows, mean over seeds; time of all seeds."
            + (" Orange: the weights of the backbone change, so no bank can serve it beside others." if own else ""),
            ("model", "score", "seeds", "seconds"),
            [(IN_WORDS[r.system], f"{r.dev:.2f}", len(r.models), f"{r.seconds:.0f}") for r in rungs],
        )


def change_tables(adapted: Adapted) -> list[Table]:
    """Return the texts of the main task that the model in the bundle helped most, and those it harmed most.

    The items of records are times 100.
    """
    if adapted.main is None or adapted.model == BARE:
        return []
    name, measure = adapted.main
    data = PreparedData(DataFolders.below(adapted.folder).prepared)
    task = next((one for one in open_tasks(data, OWN) if one.name == name), None)
    texts, labels = _texts_of(task)
    folders = {record.name: record.folder for system in adapted.systems for record in system.records}
    items = [read_items(folders[one] / ITEMS_FILE).get(name, {}).get(measure) for one in (BARE, adapted.model)]
    before, after = (np.empty(0) if one is None else one for one in items)
    if not len(before) == len(after) == len(texts) > 0:
        return []
    kinds = (("helped", after - before), ("harmed", before - after))
    return [_table(kind, name, measure, gain, texts, labels, before, after) for kind, gain in kinds if (gain > 0).any()]


def _table(
    kind: str,
    task: str,
    measure: str,
    gain: np.ndarray,
    texts: Sequence[str],
    labels: Sequence[str],
    before: np.ndarray,
    after: np.ndarray,
) -> Table:
    count = int((gain > 0).sum())
    shown = np.argsort(-gain, kind="stable")[: min(MOST, count)]
    right_or_wrong = set(np.unique(before)) | set(np.unique(after)) <= {0.0, 100.0}

    def told(value: float) -> str:
        return ("right" if value else "wrong") if right_or_wrong else f"{value:.0f}"

    lines = [
        Line(
            (
                *(Cell(column[place]) for column in (texts, labels) if column),
                *(Cell(told(value[place]), float(value[place])) for value in (before, after)),
            )
        )
        for place in shown
    ]
    words = ("text", *(["label"] if labels else []))
    return Table(
        kind,
        f"Texts that it {kind}: {count:,} of {len(texts):,}",
        f"{task}: {measure}{'' if right_or_wrong else ' times 100'} of each text with the bare backbone and with the "
        f"model in the bundle; {f'{len(lines)} of them' if right_or_wrong else f'the {len(lines)} that changed most'}.",
        (*words, "before", "after"),
        len(words),
        tuple(lines),
    )


def _texts_of(task: Task | None) -> tuple[Sequence[str], Sequence[str]]:
    """Return the texts that a task's main measure is a mean over, and their labels if they have any."""
    if isinstance(task, LabelledTexts):
        return task.test, task.test_label
    return (task.queries, ()) if isinstance(task, Retrieval) else ((), ())
