"""What the report of an adaptation shows besides scores."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cse.adapt.ladder import BARE
from cse.adapt.verdict import MOST, change_tables
from cse.data.store import TRAIN_FILE, write_rows
from cse.data.tasks.kinds import LabelledTexts, Retrieval
from cse.data.tasks.store import write_tasks
from cse.evaluation.record import ITEMS_FILE, write_items
from tests.tiny import write_report

TEXTS = [f"question {number}" for number in range(60)]
LABELS = ["card", "rate", "fee"] * 20
BEFORE = np.zeros(60)
AFTER = np.r_[np.full(25, 100.0), np.zeros(35)]


@pytest.fixture
def adapted(tmp_path):
    """An adaptation whose model labels 25 of 60 texts right, and the bare backbone three others."""

    def make(task, measure, before=BEFORE, after=AFTER, model="prompts_head-42", told=None):
        prepared = tmp_path / "prepared"
        prepared.mkdir()
        write_rows(prepared / TRAIN_FILE, "pairs", [("a", "b"), ("c", "d")])
        write_tasks(prepared, own=[task])
        write_report(prepared, "pairs", 2)
        records = []
        for number, (name, items) in enumerate(((BARE, before), (model, after))):
            folder = tmp_path / "records" / name
            folder.mkdir(parents=True)
            labels = {} if told is None else {f"{measure} label": told[number]}
            write_items(folder / ITEMS_FILE, {task.name: {measure: items, **labels}})
            records.append(SimpleNamespace(name=name, folder=folder))
        system = SimpleNamespace(records=records)
        return SimpleNamespace(folder=tmp_path, systems=[system], main=(task.name, measure), model=model)

    return make


def cells(table):
    return [list(line) for line in table.lines]


CARD, FEE, RATE = 0, 1, 2  # in alphabetical order
OWN = np.tile([CARD, RATE, FEE], 20)


def test_texts_that_became_right_and_those_that_became_wrong_with_what_they_were_taken_for(adapted):
    """The most frequent confusion first: before, cards were taken for fees and two rates for cards."""
    before, after = OWN.copy(), OWN.copy()
    before[OWN == CARD] = FEE
    before[[1, 4]] = CARD
    after[[59, 5]] = RATE
    task = LabelledTexts("intents", ["x"], ["card"], TEXTS, LABELS)
    helped, harmed, confusions = change_tables(
        adapted(task, "kNN", 100.0 * (before == OWN), 100.0 * (after == OWN), told=(before, after))
    )
    assert (helped.title, harmed.title) == ("Texts that it helped: 22 of 60", "Texts that it harmed: 2 of 60")
    assert helped.head == ("text", "label", "taken for") and len(helped.lines) == MOST
    assert cells(helped)[:2] == [["question 0", "card", "fee"], ["question 3", "card", "fee"]]
    assert all(row[1:] == ["card", "fee"] for row in cells(helped)), "the two rates come last, beyond the twenty"
    assert cells(harmed) == [["question 5", "fee", "rate"], ["question 59", "fee", "rate"]]
    assert confusions.head == ("label", "taken for", "before", "after")
    assert cells(confusions) == [["fee", "rate", "0", "2"], ["card", "fee", "20", "0"], ["rate", "card", "2", "0"]]
    assert "(22 of 60)" in confusions.caption and "(2)" in confusions.caption


def test_a_label_that_only_reference_rows_have_is_named_too(adapted):
    """Numbers stand for the labels of both columns: ``atm`` comes before all others here."""
    task = LabelledTexts("intents", ["x"], ["atm"], TEXTS, LABELS)
    told = (OWN + 1, np.zeros(60))
    _, confusions = change_tables(adapted(task, "probe", np.full(60, 100.0), np.zeros(60), told=told))
    assert {row[1] for row in cells(confusions)} == {"atm"}


def test_queries_in_the_order_of_what_they_gained(adapted):
    places = np.arange(3)
    task = Retrieval("search", TEXTS[:3], ["d"] * 3, places, places, np.ones(3, np.int64))
    (helped,) = change_tables(adapted(task, "nDCG@10", np.array([10.0, 50.0, 20.0]), np.array([20.0, 50.0, 90.0])))
    assert helped.head == ("text", "before", "after")
    assert cells(helped) == [["question 2", "20", "90"], ["question 0", "10", "20"]]


def test_the_bare_backbone_changes_nothing():
    assert change_tables(SimpleNamespace(main=("intents", "kNN"), model=BARE)) == []
    assert change_tables(SimpleNamespace(main=None, model="head")) == []
