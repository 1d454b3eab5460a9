"""The full evaluation: one encoder pass over the available data, and settings with every number."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cse.data.suite import SuiteData, only_pairs, read_cxc
from cse.data.tasks.kinds import Splits, TransferTask, sentences_of
from cse.evaluation.linear import FULL
from cse.evaluation.measures import Vectors
from cse.evaluation.retrieval import CANDIDATES, QUERY
from cse.evaluation.space import score_space
from cse.evaluation.suite import evaluate_suite
from cse.evaluation.table import format_suite
from tests.evaluation.test_cxc import make_rows, write
from tests.evaluation.test_score_task import BIRDS
from tests.evaluation.test_sts import FakeEncoder, make_task
from tests.evaluation.test_transfer import part
from tests.parts import refusal

QUICK = dataclasses.replace(FULL, folds=3, max_epoch=2)


@pytest.fixture
def data(tmp_path) -> SuiteData:
    stsb = {split: make_task(f"STS-B {split}", {"one": 50}, seed=i) for i, split in enumerate(("train", "dev", "test"))}
    stsb["test"].score[:4] = 5
    return SuiteData(
        [
            *(make_task("STS12", {"one": 40, "two": 30}), stsb["test"], Splits("STS-B", stsb)),
            *(TransferTask("CR", part(40, 2)), TransferTask("MR", part(40, 2))),
            read_cxc(write(tmp_path / "cxc.csv", make_rows())),
        ],
        missing=["TREC (TREC/train_5500.label)"],
    )


def test_a_sentence_of_several_tasks_is_encoded_once(data):
    encoder = FakeEncoder()
    evaluate_suite(encoder, data, classifier=QUICK)
    ((sentences, *_),) = encoder.calls
    assert len(sentences) == len(set(sentences))
    tasks = [*data.sts, *data.stsb.values()]
    texts = [text for task in [*tasks, data.cxc] for text in (*task.sentence1, *task.sentence2)]
    texts += [text for task in data.transfer for text in task.train.texts]
    assert set(sentences) == {*texts, QUERY, *CANDIDATES}


@pytest.mark.parametrize("style", ["text", "markdown", "latex"])
def test_every_table_has_its_setting_above_it(data, style):
    results = evaluate_suite(FakeEncoder(), data.with_tasks([BIRDS]), classifier=QUICK)
    text = format_suite({"first model": results, "second": results}, style)
    birds = results.tasks["birds"]
    for setting in (results.cxc.setting, results.retrieval.setting, results.space.setting, birds.setting):
        assert setting in text
    below = 2 if style == "markdown" else 0  # rows of mean and wmean name their model there
    assert text.count("first model") == text.count("second") == 7 + below
    for figure in (results.cxc.values["mean"], results.transfer.average(), birds.values["nDCG@10"]):
        assert f"{figure:.2f}" in text
    if style == "latex":
        assert all(line.startswith("% ") for line in text.splitlines() if "CxC" in line or "not measured" in line)


def test_a_measure_that_does_not_exist_costs_no_other(data):
    class Silent(FakeEncoder):
        def vector(self, sentence):
            return np.zeros(6, np.float32) if sentence.endswith("number 7") else super().vector(sentence)

    results = evaluate_suite(Silent(), data, classifier=QUICK)
    assert results.space is None
    assert "alignment and uniformity (uniformity: sentence" in results.missing[-2]
    assert results.cxc is not None
    assert "zero vector" in format_suite({"model": results})


def test_only_what_a_measure_reads_is_encoded_and_missed(data):
    encoder = FakeEncoder()
    results = evaluate_suite(encoder, data, measures=("cxc",))
    ((sentences, *_),) = encoder.calls
    assert set(sentences) == {*data.cxc.sentence1, *data.cxc.sentence2}
    assert results.missing == []  # TREC was not asked for
    assert (results.sts, results.transfer, results.retrieval, results.space) == (None, None, None, None)


def test_a_measure_asked_for_alone_is_an_error_where_it_does_not_exist(data):
    data.sts[0].score[:] = 3
    said = refusal(evaluate_suite, FakeEncoder(), data, measures=("sts",))
    assert "STS12: all 70 gold scores are equal (3), so there is no rank correlation" in said
    together = evaluate_suite(FakeEncoder(), data, measures=("sts", "cxc"))
    assert together.sts is None
    assert together.missing[0].startswith("STS (STS12: all 70 gold scores are equal")
    said = refusal(evaluate_suite, FakeEncoder(), only_pairs(data.sts), measures=("transfer",))
    assert "no data for transfer: without MR (no SentEval folder)" in said


def test_space_of_the_test_split_is_taken_too(data):
    encoder = FakeEncoder()
    results = evaluate_suite(encoder, data, measures=("space",))
    alone = score_space(Vectors(encoder, sentences_of([data.stsb["test"]])), [data.stsb["test"]])
    assert results.space_test == alone != results.space
    assert alone.setting.startswith("STS-B test, ")
