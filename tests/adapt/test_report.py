"""What the report of an adaptation shows besides scores."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from cse.adapt.ladder import BARE
from cse.adapt.verdict import MOST, change_tables
from cse.data.store import TRAIN_FILE, write_rows
from cse.data.tasks.kinds import LabelledTexts
from cse.data.tasks.store import write_tasks
from cse.evaluation.record import ITEMS_FILE, write_items
from tests.tiny import write_report

TEXTS = [f"question {number}" for number in range(60)]
LABELS = ["card", "rate", "fee"] * 20


def tables(folder, task, measure, told):
    """The tables of an adaptation whose bare backbone and model ``told`` labels by number."""
    (folder / "prepared").mkdir()
    write_rows(folder / "prepared" / TRAIN_FILE, "pairs", [("a", "b")])
    write_tasks(folder / "prepared", own=[task])
    write_report(folder / "prepared", "pairs", 1)
    records = []
    for name, labels in zip((BARE, "prompts_head-42"), told, strict=True):
        records.append(SimpleNamespace(name=name, folder=folder / "records" / name))
        records[-1].folder.mkdir(parents=True)
        items = {measure: 100.0 * (labels == OWN), f"{measure} label": labels}
        write_items(records[-1].folder / ITEMS_FILE, {f"tasks/{task.name}": items})
    system = SimpleNamespace(records=records)
    return change_tables(
        SimpleNamespace(folder=folder, systems=[system], main=(task.name, measure), model=records[1].name)
    )


def cells(table):
    return [list(line) for line in table.lines]


CARD, FEE, RATE = 0, 1, 2  # in alphabetical order
OWN = np.tile([CARD, RATE, FEE], 20)


def test_texts_that_became_right_and_those_that_became_wrong_with_what_they_were_taken_for(tmp_path):
    """The most frequent confusion first: before, cards were taken for fees and two rates for cards."""
    before, after = OWN.copy(), OWN.copy()
    before[OWN == CARD] = FEE
    before[[1, 4]] = CARD
    after[[59, 5]] = RATE
    task = LabelledTexts("intents", ["x"], ["card"], TEXTS, LABELS)
    helped, harmed, confusions = tables(tmp_path, task, "kNN", (before, after))
    assert (helped.title, harmed.title) == ("Texts that it helped: 22 of 60", "Texts that it harmed: 2 of 60")
    assert helped.head == ("text", "label", "taken for") and len(helped.lines) == MOST
    assert cells(helped)[:2] == [["question 0", "card", "fee"], ["question 3", "card", "fee"]]
    assert all(row[1:] == ["card", "fee"] for row in cells(helped)), "the two rates come last, beyond the twenty"
    assert cells(harmed) == [["question 5", "fee", "rate"], ["question 59", "fee", "rate"]]
    assert confusions.head == ("label", "taken for", "before", "after")
    assert cells(confusions) == [["fee", "rate", "0", "2"], ["card", "fee", "20", "0"], ["rate", "card", "2", "0"]]
    assert "(22 of 60)" in confusions.caption and "(2)" in confusions.caption
