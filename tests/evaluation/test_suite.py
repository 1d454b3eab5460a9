"""The score of a task and the full evaluation: values, roles, one encoder pass over all data, tables and records."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cse.artifact import write_sealed
from cse.data.suite import SuiteData, only_pairs
from cse.data.tasks.kinds import BinaryPairs, LabelledTexts, Retrieval, ScoredPairs, Splits, TransferTask, Triplets
from cse.evaluation import retrieval
from cse.evaluation.linear import FULL
from cse.evaluation.measures import UndefinedScore
from cse.evaluation.record import ITEMS_FILE, RECORD_FILE, read_items, read_record, write_record
from cse.evaluation.retrieval import CANDIDATES, OF_WORDS, QUERY
from cse.evaluation.score import MEASURES, SHIPPED, dev_measure, score_dev, score_task
from cse.evaluation.suite import evaluate_suite
from cse.evaluation.table import format_suite
from cse.model.sentence_encoder import SentenceEncoder
from cse.report.page import as_html, make_report
from cse.report.systems import group
from tests.evaluation.test_sts import FakeEncoder, make_captions, make_task
from tests.evaluation.test_transfer import part
from tests.parts import refusal
from tests.sides import PARTS as SIDES
from tests.sides import query_side
from tests.tiny import WORDS

QUICK = replace(FULL, folds=3, max_epoch=2)


def make_suite(folder: Path, spoken: Callable[[str], str] = str) -> SuiteData:
    """Some of every kind of task; ``spoken`` says each text in other words."""

    def said(pairs, **changes):
        first, second = (list(map(spoken, side)) for side in (pairs.sentence1, pairs.sentence2))
        return replace(pairs, sentence1=first, sentence2=second, **changes)

    stsb = {split: said(make_task(f"STS-B {split}", 50)) for split in ("train", "dev", "test")}
    stsb["test"].score[:4] = 5
    sts = [said(make_task("STS12", 70)), replace(stsb["test"], name="STS-B"), Splits("STS-B", stsb)]
    transfer = [TransferTask(name, part(40, 2)) for name in ("CR", "MR")]
    return SuiteData([*sts, *transfer, said(make_captions(folder))], missing=["TREC (TREC/train_5500.label)"])


@pytest.fixture
def data(tmp_path) -> SuiteData:
    return make_suite(tmp_path)


def test_a_sentence_of_several_tasks_is_encoded_once_and_only_what_a_measure_reads(data):
    encoder = FakeEncoder()
    evaluate_suite(encoder, data, classifier=QUICK)
    ((sentences, *_),) = encoder.calls
    assert len(sentences) == len(set(sentences))
    pairs = [*data.sts, *data.stsb.values(), data.cxc]
    texts = {text for task in pairs for text in (*task.sentence1, *task.sentence2)}
    assert set(sentences) == texts.union(*(task.train.texts for task in data.transfer), [QUERY, *CANDIDATES])


def test_a_measure_that_does_not_exist_costs_no_other(data):
    class Silent(FakeEncoder):
        def vector(self, sentence):
            return np.zeros(6, np.float32) if sentence.endswith("number 7") else super().vector(sentence)

    results = evaluate_suite(Silent(), data, classifier=QUICK)
    assert results.space is None and results.cxc is not None
    assert "alignment and uniformity (uniformity: sentence" in results.missing[-2]
    assert "zero vector" in format_suite({"model": results})

    encoder = FakeEncoder()
    results = evaluate_suite(encoder, data, measures=("cxc",))
    ((sentences, *_),) = encoder.calls
    assert set(sentences) == {*data.cxc.sentence1, *data.cxc.sentence2}
    assert (results.missing, results.sts, results.transfer, results.space) == ([], None, None, None)


def test_a_measure_asked_for_alone_is_an_error_where_it_does_not_exist(data):
    data.sts[0].score[:] = 3
    assert "STS12: all 70 gold scores are equal" in refusal(evaluate_suite, FakeEncoder(), data, measures=("sts",))
    together = evaluate_suite(FakeEncoder(), data, measures=("sts", "cxc"))
    assert together.sts is None
    assert together.missing[0].startswith("STS (STS12: all 70 gold scores are equal")
    said = refusal(evaluate_suite, FakeEncoder(), only_pairs(data.sts), measures=("transfer",))
    assert "no data for transfer: without MR (no SentEval folder)" in said


def test_a_record_comes_back_and_whatever_is_changed_in_it_is_noticed_in_one_line(data, tmp_path):
    """``cse report`` and ``cse compare`` read every one of these files."""
    results, folder = evaluate_suite(FakeEncoder(), data, measures=("sts", "retrieval")), tmp_path / "record"
    folder.mkdir()
    write_record(folder, "my model", results, model={"kind": "backbone"}, environment={"python": "3"})
    record = read_record(folder)
    assert (record.name, record.model, record.environment) == ("my model", {"kind": "backbone"}, {"python": "3"})
    assert record.scores["sts"]["STS-B"]["all"] == pytest.approx(results.sts.tasks["STS-B"].values["all"], abs=1e-4)
    curves, expected = record.table("density.csv"), [value for curve in results.densities for value in curve.density]
    np.testing.assert_allclose([float(row["density"]) for row in curves], expected, atol=1e-4)
    ranks = {(row["query"], row["partner"]): int(row["rank"]) for row in record.table("retrieval.csv")}
    assert ranks == {(example.query, example.partner): example.rank for example in results.retrieval.examples}

    said = refusal(read_record, tmp_path)
    assert "no record.json in it; create one with `cse evaluate MODEL --out FOLDER`" in said
    text = (folder / RECORD_FILE).read_text(encoding="utf-8")
    tree = json.loads(text)
    write_sealed(folder / RECORD_FILE, tree | {"format": 99})
    assert "format 99, this version reads 5" in refusal(read_record, folder)
    for damaged in ("", text[:-20], "[]", "[" * 100_000, json.dumps(tree | {"name": "other"})):
        (folder / RECORD_FILE).write_text(damaged, encoding="utf-8")
        assert RECORD_FILE in refusal(read_record, folder)
    (folder / RECORD_FILE).write_text(text, encoding="utf-8")
    others = sorted(path for path in folder.iterdir() if path.name != RECORD_FILE)
    assert {path.suffix for path in others} == {".csv", ".npz"}
    for path in others:
        content = path.read_bytes()
        for other in (None, content[:-2] + b"\xff\n"):
            path.unlink() if other is None else path.write_bytes(other)
            assert path.name in refusal(read_record, folder)
        path.write_bytes(content)
    assert read_record(folder).name == "my model"


# ---- single tasks ---------------------------------------------------------------------------------------------------

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
    assert (*score.values,) == tuple(name for name in MEASURES[score.facts["kind"]] if name != SHIPPED)
    assert score.main == next(iter(score.values))
    means = {name: items.mean() for name, items in score.items.items() if name in score.values}
    assert means == pytest.approx({name: score.values[name] for name in means}, abs=1e-9)
    of_pairs = score.facts["kind"] in ("scored pairs", "binary pairs")
    assert {*(score.items if of_pairs else means)} == ({"cosine", "gold"} if of_pairs else {*score.values} - {OF_WORDS})
    assert {len(items) for items in score.items.values()} == {len(task)}
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


def test_queries_and_documents_get_the_text_of_their_role_and_a_large_collection_is_encoded_in_parts(monkeypatch):
    encoder = Roles()
    whole = score_task(encoder, BIRDS)
    assert encoder.roles == ["query", "passage"]
    assert encoder.calls[0][0] == ["find: text 0", "find: text 1", "find: text 2"]
    score_task(encoder, BANK)
    assert {*encoder.roles[2:]} == {None}, "a labelled text is neither query nor document"
    monkeypatch.setattr("cse.evaluation.score.DOCUMENTS", 10)
    monkeypatch.setattr("cse.runtime.kept_vectors.TEXTS", 4)
    encoder = Roles()
    parts = score_task(encoder, BIRDS)
    assert parts.values == pytest.approx(whole.values)
    assert [len(sentences) for sentences, *_ in encoder.calls] == [3, 4, 4, 4, 4, 4, 1], "no more documents at a time"


def test_the_measure_that_selects_checkpoints_and_one_that_is_not_defined_selects_nothing():
    every = score_task(FakeEncoder(), BANK).values
    found = [score_dev(FakeEncoder(), BANK, measure=name) for name in (None, "class mean")]
    assert [(one.measure, one.value) for one in found] == [(name, every[name]) for name in ("kNN", "class mean")]
    said = refusal(dev_measure, BIRDS, "nDCG@5", "train.dev_measure")
    assert "train.dev_measure: 'nDCG@5' is no measure of birds" in said and "did you mean 'nDCG@10'" in said
    said = refusal(dev_measure, PAIRS, "F1 threshold", "train.dev_measure")
    assert "'F1 threshold' is no measure of pairs (binary pairs); one of AP, F1" in said
    alone = LabelledTexts("alone", TEXTS[:12], LABELS[:12], TEXTS[12:15], ["a", "b", "c"])
    score = score_task(FakeEncoder(), alone)
    assert list(score.values) == ["kNN", "class mean", "accuracy"] and "MAP" not in score.items
    with pytest.raises(UndefinedScore, match="alone: MAP is not defined: no two test rows have the same label"):
        score_dev(FakeEncoder(), alone, measure="MAP")


def test_tasks_beside_the_other_measures_and_one_that_has_no_score():
    data = SuiteData([make_task("STS12", 40)]).with_tasks(TASKS)
    results = evaluate_suite(FakeEncoder(), data, measures=("sts", "tasks"))
    assert list(results.tasks) == list(results.to_dict()["tasks"]) == ["pairs", "triplets", "birds", "bank"]
    without = evaluate_suite(FakeEncoder(), data, measures=("sts",))
    assert without.sts == results.sts and "tasks" not in without.to_dict()
    assert "tasks: two are called birds" in refusal(data.with_tasks, [BIRDS])
    same = ScoredPairs("same", ["a", "a"], ["b", "b"], np.array([1.0, 2.0]))
    results = evaluate_suite(FakeEncoder(), SuiteData().with_tasks([same, BANK]), measures=("tasks",))
    assert list(results.tasks) == ["bank"]
    assert results.missing[0].startswith("same (same: all 2 similarities are equal")
    # the default measures, and no tasks: as if there were no measure of them
    for suite, measures in ((SuiteData().with_tasks([same]), ("tasks",)), (SuiteData([same]), ("sts", "tasks"))):
        with pytest.raises(UndefinedScore):
            evaluate_suite(FakeEncoder(), suite, measures=measures)


def test_records_hold_items_and_the_report_a_table(tmp_path):
    results = evaluate_suite(FakeEncoder(), SuiteData().with_tasks(TASKS), measures=("tasks",))
    model = {"kind": "backbone", "prompt": None}
    for seed in "12":
        (tmp_path / seed).mkdir()
        write_record(tmp_path / seed, f"own {seed}", results, model=model, environment={})
    records = [read_record(tmp_path / seed) for seed in "12"]
    one, two = (tmp_path / seed / ITEMS_FILE for seed in "12")
    np.testing.assert_equal(read_items(one), {f"tasks/{name}": score.items for name, score in results.tasks.items()})
    assert one.read_bytes() == two.read_bytes(), "no time stamps"
    two.write_bytes(b"PK")
    assert "items.npz: truncated or changed" in refusal(read_items, two)
    assert read_items(tmp_path / "none.npz") == {}
    page = as_html(make_report(group(records)))
    assert "Your task: birds" in page and f"{results.tasks['birds'].values['nDCG@10']:.2f}" in page


def test_a_query_side_reads_queries_alone(bert):
    """Retrieval takes it for queries; documents, labels and pairs take the bare backbone."""
    words = [" ".join(WORDS[start : start + 3]) for start in range(24)]
    birds = replace(BIRDS, queries=words[:3], documents=words[3:])
    others = [
        ScoredPairs("scored", words[:12], words[12:], np.arange(12) / 3),
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
