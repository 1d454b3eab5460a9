"""Models are compared on held-out rows that did not pick their weights."""

from __future__ import annotations

import csv

import pytest

from cse.adapt.ladder import FEW_ROWS, LABELS
from cse.adapt.models import Models
from cse.data.store import PreparedData
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.ledger import Ledger
from cse.settings import Settings
from cse.settings.load import settings_with


@pytest.mark.parametrize("kind", [LABELS, FEW_ROWS])
def test_what_picks_does_not_compare_and_where_last_weights_are_kept_nothing_picks(
    tmp_path, tiny_folders, monkeypatch, kind
):
    """A fifth of the labelled texts is held out to choose, and a fifth to measure."""
    path, out, compared = tmp_path / "labels.csv", tmp_path / "out", []
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *((f"text {n}", f"label {n % 3}") for n in range(120))])
    values = {
        "data.source": "files", "data.view": "categories", "data.train_path": str(path), "data.hold_out": 0.2,
        "data.dev": "own", "objective.energy_hinge.weight": 0.0, "train.dev_measure": "MAP",
        "backbone.name": str(tiny_folders["bert"]), "train.device": "cpu", "evaluation.device": "cpu",
    }  # fmt: skip
    models = Models(settings_with(Settings(), values), out, Ledger(out / "ledger"), kind)
    models.prepare()
    monkeypatch.setattr(
        "cse.adapt.models.score_dev", lambda encoder, task, *_: compared.append(task) or type("Dev", (), {"value": 1.0})
    )
    models.train("backbone", models.settings_of("backbone"))
    held_out, seen = (open_dev(PreparedData(each)) for each in (models.data, models.trained_on))
    (task,) = compared
    assert models.selects and not open_tasks(PreparedData(models.trained_on), OWN)
    assert models.ladder.tried["backbone"].devs == [1.0]
    assert task.reference == held_out.reference
    if kind == FEW_ROWS:
        assert seen is None and task.test == held_out.test
    else:
        assert sorted(seen.test + task.test) == sorted(held_out.test) and min(len(seen.test), len(task.test)) >= 8
        assert seen.reference == held_out.reference
