"""The keys of the dev score: those of scored pairs as ever, and those of any other task."""

from __future__ import annotations

from cse.evaluation.dev_facts import (
    DEV,
    SELECTION,
    START,
    DevScore,
    dev_column,
    dev_facts_in,
    dev_keys,
    dev_of,
    facts_of,
    measure_in,
    value_of,
)

SCORED = {"start_dev_spearman": 60.0, "dev_spearman": 71.12346, "best_step": 4, "selection_spearman": 70.5}
OWN = {"start_dev_score": 60.0, "dev_measure": "kNN", "dev_score": 71.5, "best_step": 4}


def test_scored_pairs_keep_their_keys():
    assert facts_of(DevScore(71.123456)) == {"dev_spearman": 71.1235}
    assert facts_of(DevScore(60.0), START) == {"start_dev_spearman": 60.0}
    assert dev_of(SCORED) == DevScore(71.12346)
    assert dev_of(SCORED, START) == DevScore(60.0)
    assert dev_of(SCORED, SELECTION) == DevScore(70.5)
    assert dev_facts_in(SCORED, DEV) == {"dev_spearman": 71.12346}
    assert dev_column("Spearman") == "spearman"


def test_another_task_has_a_score_and_the_name_of_its_measure():
    assert facts_of(DevScore(71.5, "kNN")) == {"dev_score": 71.5, "dev_measure": "kNN"}
    assert facts_of(DevScore(60.0, "kNN"), START) == {"start_dev_score": 60.0, "dev_measure": "kNN"}
    assert str(dev_of(OWN)) == "dev kNN 71.50"
    assert dev_of(OWN, START) == DevScore(60.0, "kNN")
    assert dev_of(OWN, SELECTION) is None
    assert dev_facts_in(OWN, DEV, START) == {"start_dev_score": 60.0, "dev_measure": "kNN", "dev_score": 71.5}
    assert (measure_in(OWN), value_of(dev_of(OWN)), value_of(None)) == ("kNN", 71.5, None)
    assert dev_keys(DEV, START)[:2] == ["dev_spearman", "start_dev_spearman"]


def test_a_run_without_a_dev_score():
    assert dev_of({}) is None
    assert measure_in({"dev_spearman": None}) is None  # as in the metrics of a domain without dev pairs
    assert dev_of({"dev_spearman": None, "dev_score": 3.5, "dev_measure": "AP"}) == DevScore(3.5, "AP")
