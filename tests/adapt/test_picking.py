"""Models are compared on held-out rows that picked neither their weights nor their learning rate."""

from __future__ import annotations

import csv

import pytest

from cse.adapt.ladder import FEW_ROWS, LABELS
from cse.adapt.models import Models
from cse.bench.ledger import Ledger
from cse.data.store import PreparedData
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.settings import Settings
from cse.settings.load import settings_with


@pytest.fixture
def made(tmp_path, tiny_folders):
    """Models of labelled texts, a fifth of which is held out to choose, and a fifth to measure."""
    path = tmp_path / "labels.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "label"), *((f"text {n}", f"label {n % 3}") for n in range(120))])
    values = {
        "data.source": "files", "data.view": "categories", "data.train_path": str(path), "data.hold_out": 0.2,
        "data.dev": "own", "objective.energy_hinge.weight": 0.0, "train.dev_measure": "MAP",
        "backbone.name": str(tiny_folders["bert"]), "train.device": "cpu", "evaluation.device": "cpu",
    }  # fmt: skip

    def make(keeps_last: bool) -> Models:
        settings, out = settings_with(Settings(), values), tmp_path / f"out-{keeps_last}"
        models = Models(settings, out, Ledger(out / "ledger"), FEW_ROWS if keeps_last else LABELS)
        models.prepare()
        return models

    return make


def test_what_picks_does_not_compare(made, monkeypatch):
    models, compared = made(keeps_last=False), []
    monkeypatch.setattr(
        "cse.adapt.models.score_dev", lambda encoder, task, *_: compared.append(task) or type("Dev", (), {"value": 1.0})
    )
    models.train("backbone", models.settings_of("backbone"))
    held_out, seen = (open_dev(PreparedData(each.prepared)) for each in (models.data, models.trained_on))
    (task,) = compared
    assert sorted(seen.test + task.test) == sorted(held_out.test) and min(len(seen.test), len(task.test)) >= 8
    assert seen.reference == task.reference == held_out.reference
    assert models.selects and not open_tasks(PreparedData(models.trained_on.prepared), OWN)
    assert models.ladder.tried["backbone"].devs == [1.0]


def test_where_last_weights_are_kept_nothing_picks_and_all_compare(made, monkeypatch):
    models, compared = made(keeps_last=True), []
    monkeypatch.setattr(
        "cse.adapt.models.score_dev", lambda encoder, task, *_: compared.append(task) or type("Dev", (), {"value": 1.0})
    )
    models.train("backbone", models.settings_of("backbone"))
    assert open_dev(PreparedData(models.trained_on.prepared)) is None
    assert compared[0].test == open_dev(PreparedData(models.data.prepared)).test
