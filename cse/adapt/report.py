"""What the report of an adaptation shows besides scores: the ladder, and the texts that a model helped or harmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from cse.adapt.ladder import BARE, FULL, HEADED, IN_WORDS, PROMPTS, Ladder, shares_backbone
from cse.adapt.run import Adapted
from cse.data.store import PreparedData
from cse.data.tasks.kinds import LabelledTexts, Retrieval
from cse.data.tasks.store import OWN, open_tasks
from cse.evaluation.labels import known_labels
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.evaluation.score import TOLD
from cse.report.canvas import COLOURS, NARROW, Picture, canvas
from cse.report.tables import Cell, Line, Table, texts
from cse.training import Folders

MOST = 20  # rows of a table


def draw_ladder(ladder: Ladder, measure: str) -> Picture | None:
    """Draw the score on held-out rows of each kind of model, and the minutes it took; None if nothing was scored."""
    rungs = [rung for rung in ladder.rungs.values() if rung.dev is not None]
    if not rungs:
        return None
    own = any(not shares_backbone(rung.system) for rung in rungs)
    with canvas(NARROW, 0.62 * len(rungs) + 0.7) as (figure, save):
        axes = figure.subplots()
        scores = [rung.dev or 0.0 for rung in rungs]
        colours = [COLOURS[0] if shares_backbone(rung.system) else COLOURS[1] for rung in rungs]
        bars = axes.barh(range(len(rungs)), scores, 0.45, color=colours)
        behind = [HEADED[PROMPTS], HEADED[FULL]]  # their time is what they take beyond the model below
        told = [f"{r.dev:.1f}, {'+' if r.system in behind else ''}{r.seconds / 60:.1f} min" for r in rungs]
        axes.bar_label(bars, told, padding=4, fontsize=9)
        for place, rung in enumerate(rungs):  # above its bar: beside it there is no room on a phone
            axes.text(0, place - 0.28, IN_WORDS[rung.system], va="bottom")
        axes.set_yticks([])
        axes.set_ylim(len(rungs) - 0.7, -0.75)
        axes.set_xlim(min(0.0, *scores), 1.3 * max(*scores, 1e-9))
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

    Of labelled texts also which label is most often taken for which. The items of records are times 100.
    """
    if adapted.main is None or adapted.model == BARE:
        return []
    name, measure = adapted.main
    data = PreparedData(Folders.below(adapted.folder).prepared)
    task = next((one for one in open_tasks(data, OWN) if one.name == name), None)
    folders = {record.name: record.folder for system in adapted.systems for record in system.records}
    before, after = (read_items(folders[one] / ITEMS_FILE).get(name, {}) for one in (BARE, adapted.model))
    if isinstance(task, LabelledTexts) and f"{measure}{TOLD}" in before.keys() & after.keys():
        labels = known_labels(task.test_label, task.reference_label)
        told = [[labels[int(number)] for number in items[f"{measure}{TOLD}"]] for items in (before, after)]
        return _of_labels(name, measure, task, *told)
    own = task.queries if isinstance(task, Retrieval) else task.test if isinstance(task, LabelledTexts) else []
    sides = [items.get(measure, np.empty(0)) for items in (before, after)]
    if not len(sides[0]) == len(sides[1]) == len(own) > 0:
        return []
    gain = sides[1] - sides[0]
    tables = []
    for kind, gained in (("helped", gain), ("harmed", -gain)):
        count = int((gained > 0).sum())
        shown = np.argsort(-gained, kind="stable")[: min(MOST, count)]
        lines = [Line((Cell(own[n]), *(Cell(f"{side[n]:.0f}", float(side[n])) for side in sides))) for n in shown]
        caption = (
            f"{name}: {measure} times 100 of each text with the bare backbone and with the model in the bundle; the "
            f"{len(lines)} that changed most."
        )
        if lines:
            title = f"Texts that it {kind}: {count:,} of {len(own):,}"
            tables.append(Table(kind, title, caption, ("text", "before", "after"), lines, 1))
    return tables


def _of_labels(
    name: str, measure: str, task: LabelledTexts, before: Sequence[str], after: Sequence[str]
) -> list[Table]:
    """Return what became right, what became wrong, and confusions; the most frequent confusions first."""
    label, count = task.test_label, f"of {len(task.test):,}"
    tables = []
    for kind, wrong, right, whose in (
        ("helped", before, after, "the bare backbone"),
        ("harmed", after, before, "the model in the bundle"),
    ):
        changed = [n for n, own in enumerate(label) if wrong[n] != own == right[n]]
        frequent = Counter((label[n], wrong[n]) for n in changed)
        shown = sorted(changed, key=lambda n: (-frequent[label[n], wrong[n]], label[n], wrong[n]))[:MOST]
        caption = (
            f"{name}: what {measure} takes each text for with {whose}; with the other it is right. Of the most "
            f"frequent confusions, {len(shown)} texts."
        )
        if shown:
            lines = [Line(texts(task.test[n], label[n], wrong[n])) for n in shown]
            title = f"Texts that it {kind}: {len(changed):,} {count}"
            tables.append(Table(kind, title, caption, ("text", "label", "taken for"), lines, 3))
    old, new = (
        Counter((own, one) for own, one in zip(label, told, strict=True) if own != one) for told in (before, after)
    )
    common = sorted(old.keys() | new.keys(), key=lambda pair: (-new[pair], -old[pair], pair))
    lines = [
        Line((*texts(*pair), Cell(f"{old[pair]:,}", old[pair]), Cell(f"{new[pair]:,}", new[pair])))
        for pair in common[:MOST]
    ]
    if lines:
        caption = (
            f"{name}: texts of a label that {measure} takes for another, with the bare backbone ({old.total():,} "
            f"{count}) and with the model in the bundle ({new.total():,}); the {len(lines)} most frequent of "
            f"{len(common):,} confusions."
        )
        head = ("label", "taken for", "before", "after")
        tables.append(Table("confusions", "Labels taken for others", caption, head, lines, 2))
    return tables
