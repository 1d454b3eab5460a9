"""The score of a task: values, what they are means of, roles; in the suite, its tables, the record and the report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cse.data.suite import SuiteData
from cse.data.tasks.kinds import BinaryPairs, LabelledTexts, Retrieval, ScoredPairs, Triplets
from cse.evaluation import retrieval
from cse.evaluation.measures import UndefinedScore
from cse.evaluation.record import ITEMS_FILE, read_items, read_record, write_record
from cse.evaluation.retrieval import OF_WORDS
from cse.evaluation.score import MEASURES, dev_measure, score_dev, score_task
from cse.evaluation.suite import evaluate_suite
from cse.model.sentence_encoder import SentenceEncoder
from cse.report.page import as_html, make_report
from cse.report.systems import group
from tests.evaluation.test_sts import FakeEncoder, make_task
from tests.parts import refusal
from tests.sides import PARTS as SIDES
from tests.sides import query_side
from tests.tiny import WORDS

TEXTS = [f"text {i}" for i in range(24)]
LABELS = ["a", "b", "c"] * 8
PAIRS = BinaryPairs("pairs", TEXTS[:12], TEXTS[12:], np.arange(12) % 3 == 0)
TRIPLETS = Triplets("triplets", TEXTS[:8], TEXTS[8:16], TEXTS[16:])
BIRDS = Retrieval("birds", TEXTS[:3], TEXTS[3:], np.array([0, 0, 1, 2]), np.array([5, 7, 5, 0]), np.array([1, 2, 1, 1]))
BANK = LabelledTexts("bank", TEXTS[:12], LABELS[:12], TEXTS[12:], LABELS[12:])
TASKS = [PAIRS, TRIPLETS, BIRDS, BANK]


class Roles(FakeEncoder):
    """A fake encoder with task texts; the vector of a text depends on its role."""

    texts = {"query": "find: ", "passage": ""}  # noqa: RUF012

    def encode(self, sentences, role=None, **options):
        self.roles = [*getattr(self, "roles", []), role]
        return super().encode([f"{self.texts.get(role, '')}{sentence}" for sentence in sentences], **options)


@pytest.mark.parametrize("task", [make_task("scored", 30), *TASKS], ids=lambda task: task.name)
def test_a_value_is_the_mean_of_its_items_and_each_text_is_encoded_once(task):
    encoder = FakeEncoder()
    score = score_task(encoder, task, batch_size=7)
    assert tuple(score.values) == MEASURES[score.facts["kind"]]
    assert score.main == next(iter(score.values))
    means = {name: items for name, items in score.items.items() if name in score.values}
    for name, items in means.items():
        assert score.values[name] == pytest.approx(items.mean(), abs=1e-9)
        assert len(items) == len(task)
    if score.facts["kind"] in ("scored pairs", "binary pairs"):
        assert {name: len(items) for name, items in score.items.items()} == {"cosine": len(task), "gold": len(task)}
    else:
        assert set(means) == set(score.values) - {OF_WORDS}
    for sentences, batch_size, *_ in encoder.calls:
        assert (len(sentences), batch_size) == (len(set(sentences)), 7)


def test_labelled_texts_say_which_label_was_told():
    """Numbers stand for the labels of both columns in alphabetical order."""
    score = score_task(FakeEncoder(), BANK)
    own = np.array([sorted({*LABELS}).index(label) for label in BANK.test_label])
    for measure in ("kNN", "class mean", "accuracy"):
        told = score.items[f"{measure} label"]
        assert set(told) <= {0, 1, 2}
        np.testing.assert_array_equal(score.items[measure], 100 * (told == own))


def test_queries_and_documents_get_the_text_of_their_role():
    encoder = Roles()
    score = score_task(encoder, BIRDS)
    assert encoder.roles == ["query", "passage"]
    assert encoder.calls[0][0] == ["find: text 0", "find: text 1", "find: text 2"]
    assert score.setting.endswith("linear gain; queries as query, documents as passage")
    score_task(encoder, BANK)
    assert {*encoder.roles[2:]} == {None}, "a labelled text is neither query nor document"


def test_a_large_collection_is_encoded_in_parts_and_scores_the_same(monkeypatch):
    whole = score_task(Roles(), BIRDS)
    monkeypatch.setattr("cse.evaluation.score.DOCUMENTS", 10)
    monkeypatch.setattr("cse.runtime.kept_vectors.TEXTS", 4)
    encoder = Roles()
    parts = score_task(encoder, BIRDS)
    assert parts.values == pytest.approx(whole.values)
    assert [len(sentences) for sentences, *_ in encoder.calls] == [3, 4, 4, 4, 4, 4, 1], "no more documents at a time"


def test_the_measure_that_selects_checkpoints():
    every = score_task(FakeEncoder(), BANK).values
    found = [score_dev(FakeEncoder(), BANK, measure=name) for name in (None, "class mean")]
    assert [(one.measure, one.value) for one in found] == [(name, every[name]) for name in ("kNN", "class mean")]
    said = refusal(dev_measure, BIRDS, "nDCG@5", "train.dev_measure")
    assert "train.dev_measure: 'nDCG@5' is no measure of birds" in said and "did you mean 'nDCG@10'" in said
    said = refusal(dev_measure, PAIRS, "F1 threshold", "train.dev_measure")
    assert "'F1 threshold' is no measure of pairs (binary pairs); one of AP, F1" in said


def only(*tasks) -> SuiteData:
    return SuiteData().with_tasks(tasks)


def test_tasks_beside_the_other_measures():
    data = SuiteData([make_task("STS12", 40)]).with_tasks(TASKS)
    results = evaluate_suite(FakeEncoder(), data, measures=("sts", "tasks"))
    assert list(results.tasks) == list(results.to_dict()["tasks"]) == ["pairs", "triplets", "birds", "bank"]
    without = evaluate_suite(FakeEncoder(), data, measures=("sts",))
    assert without.sts == results.sts
    assert "tasks" not in without.to_dict()
    assert "tasks: two are called birds" in refusal(data.with_tasks, [BIRDS])


def test_a_task_that_has_no_score_leaves_the_others():
    same = ScoredPairs("same", ["a", "a"], ["b", "b"], np.array([1.0, 2.0]))
    results = evaluate_suite(FakeEncoder(), only(same, BANK), measures=("tasks",))
    assert list(results.tasks) == ["bank"]
    assert results.missing[0].startswith("same (same: all 2 similarities are equal")
    with pytest.raises(UndefinedScore):
        evaluate_suite(FakeEncoder(), only(same), measures=("tasks",))
    with pytest.raises(UndefinedScore):  # the default measures, and no tasks: as if there were no measure of them
        evaluate_suite(FakeEncoder(), SuiteData([same]), measures=("sts", "tasks"))


def test_records_hold_items_and_the_report_a_table(tmp_path):
    results = evaluate_suite(FakeEncoder(), only(*TASKS), measures=("tasks",))
    records = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        model = {"kind": "backbone", "prompt": None}
        write_record(tmp_path / seed, f"own {seed}", results, model=model, environment={})
        records.append(read_record(tmp_path / seed))
    one, two = (tmp_path / seed / ITEMS_FILE for seed in ("1", "2"))
    items = read_items(one)
    assert list(items) == ["tasks/pairs", "tasks/triplets", "tasks/birds", "tasks/bank"]
    for name, score in results.tasks.items():
        np.testing.assert_equal(items[f"tasks/{name}"], score.items)
    assert one.read_bytes() == two.read_bytes(), "no time stamps"
    two.write_bytes(b"PK")
    assert "items.npz: truncated or changed" in refusal(read_items, two)
    assert read_items(tmp_path / "none.npz") == {}
    page = as_html(make_report(group(records)))
    assert "Your task: birds" in page
    assert f"{results.tasks['birds'].values['nDCG@10']:.2f}" in page


def test_a_measure_that_is_not_defined_is_left_out_and_selects_nothing():
    alone = LabelledTexts("alone", TEXTS[:12], LABELS[:12], TEXTS[12:15], ["a", "b", "c"])
    score = score_task(FakeEncoder(), alone)
    assert list(score.values) == ["kNN", "class mean", "accuracy"]
    assert "MAP" not in score.items
    with pytest.raises(UndefinedScore, match="alone: MAP is not defined: no two test rows have the same label"):
        score_dev(FakeEncoder(), alone, measure="MAP")


def test_a_query_side_reads_queries_alone(bert):
    """Retrieval takes it for queries; documents, labels and pairs take the bare backbone."""
    words = [" ".join(WORDS[start : start + 3]) for start in range(24)]
    birds = replace(BIRDS, queries=words[:3], documents=words[3:])
    others = [
        ScoredPairs("scored", words[:12], words[12:], np.arange(12) / 3),
        replace(PAIRS, sentence1=words[:12], sentence2=words[12:]),
        replace(BANK, test=words[:12], reference=words[12:]),
    ]
    encoder, bare = query_side(bert, **SIDES["prompt"]), SentenceEncoder(bert)
    queries = encoder.encode(words[:3], role="query")
    assert not np.allclose(queries, bare.encode(words[:3]), atol=1e-3)
    found = retrieval.score_queries(queries, bare.encode(words[3:]), birds, words=True)
    score = score_task(encoder, birds)
    assert score.values == pytest.approx({name: 100 * each.mean() for name, each in found.items()})
    for task in others:
        assert score_task(encoder, task).values == score_task(bare, task).values
