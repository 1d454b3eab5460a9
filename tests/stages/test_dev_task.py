"""A dev task other than scored pairs selects the checkpoint, and everything that reads the score says what it is."""

import csv
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from cse.data.store import DOCUMENTS_FILE, PreparedData, write_table
from cse.data.tasks.kinds import LabelledTexts, Retrieval
from cse.data.tasks.store import TEST, open_dev, open_tasks, write_tasks
from cse.evaluation.record import ITEMS_FILE, read_items, read_record
from cse.evaluation.score import score_dev
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import load_checkpoint
from cse.stages.bank import judge
from cse.stages.evaluate import evaluate_stage
from cse.stages.export import export_stage
from cse.tune.trial import share_data
from tests.parts import refusal
from tests.stages.training import train_in
from tests.tiny import WORDS, write_dev

# texts of four labels, of a few words each
TEXTS = {label: [f"{a} {b}" for a in WORDS[at : at + 6] for b in WORDS[at + 3 : at + 8]]
         for label, at in {"one": 0, "two": 8, "three": 16, "four": 24}.items()}  # fmt: skip


def labelled() -> LabelledTexts:
    rows = [(text, label) for label, texts in TEXTS.items() for text in texts]
    sides = ([list(column) for column in zip(*part, strict=True)] for part in (rows[::2], rows[1::2]))
    (reference, reference_label), (test, test_label) = sides
    return LabelledTexts("topics", reference, reference_label, test, test_label)


@pytest.fixture
def data(data, tmp_path):
    """Prepared data, the sentences with a dev task of labelled texts."""
    folder = shutil.copytree(data["sentences"], tmp_path / "prepared")
    write_dev(folder, labelled())
    return data | {"sentences": folder}


@pytest.fixture
def prepared(data):
    return data["sentences"]


def test_the_main_measure_selects_and_is_named_everywhere(run, settings, prepared, tmp_path, capfd):
    metrics = run(settings({"train.learning_rate": 0.3, "train.eval_every": 2}))
    assert metrics["dev_measure"] == "kNN" and not [key for key in metrics if "spearman" in key]
    assert read_config(tmp_path / "run/checkpoint")["facts"]["dev_score"] == metrics["dev_score"]
    found = score_dev(load_checkpoint(tmp_path / "run/checkpoint"), open_dev(PreparedData(prepared)))
    assert metrics["dev_score"] == pytest.approx(found.value, abs=1e-3)
    curve = csv.DictReader((tmp_path / "run/plots/dev.csv").read_text(encoding="utf-8").splitlines())
    assert max(float(row["score"]) for row in curve) == metrics["dev_score"]
    assert re.search(r"^trained \d+ steps, dev kNN \d+\.\d\d", capfd.readouterr().out, re.MULTILINE)


def test_an_unknown_measure_is_refused_before_training(run, settings, prepared, tmp_path):
    said = refusal(run, settings({"train.dev_measure": "nDCG@10"}))
    assert "train.dev_measure: 'nDCG@10' is no measure of topics (labelled texts); one" in said
    write_dev(prepared, None)
    said = refusal(run, settings({"train.dev_measure": "kNN"}))
    assert "train.dev_measure: 'kNN', but there is no dev task; set data.dev_path" in said
    assert not (tmp_path / "run").exists()


def test_a_trial_sees_all_documents_where_rows_were_drawn(prepared, tmp_path):
    write_table(prepared / DOCUMENTS_FILE, pa.schema([("text", pa.string())]), [("one",), ("two",)])
    share_data(prepared, tmp_path / "trials/prepared")
    assert list(PreparedData(tmp_path / "trials/prepared").documents) == ["one", "two"]


@pytest.mark.slow
def test_the_gate_compares_by_the_measure_that_selected(run, settings, prepared, tmp_path):
    found = []
    for seed in (42, 3):
        chosen = settings({"train.dev_measure": "MAP", "train.seed": seed, "train.learning_rate": 0.3})
        found.append((run(chosen, f"{seed}")["dev_score"], folder := tmp_path / f"{seed}"))
        export_stage(settings(), model=folder / "checkpoint", prepared=prepared, metrics=(), bundle=folder / "bundle")
    (lost, worse), (won, better) = sorted(found)
    assert won > lost + 0.01
    strict, places = settings({"promotion.dev_tolerance": 0.0}), {"prepared": prepared, "promoted": better / "bundle"}
    verdict = judge(strict, bundle=worse / "bundle", checkpoint=worse / "checkpoint", **places)
    assert (verdict.dev, verdict.promoted_dev) == pytest.approx((lost, won), abs=0.01)
    assert re.match(r"dev MAP \d+\.\d\d is more than 0 below the promoted model's", verdict.reasons[0])


def test_the_stage_evaluates_prepared_tasks_by_default(run, settings, prepared, tmp_path, capsys):
    texts = [text for some in TEXTS.values() for text in some]
    search = Retrieval("search", texts[:2], texts[2:], *np.array([[0, 1, 1], [4, 5, 9], [1, 1, 2]]))
    data = PreparedData(prepared)
    write_tasks(prepared, dev=open_dev(data), test=open_tasks(data, TEST), own=[labelled(), search])
    chosen = settings({"train.parameters": "none", "prompt.kind": "none", "prompt.length": 0})
    run(chosen)
    outputs = {"checkpoint": tmp_path / "run/checkpoint", "records": tmp_path / "records", "plots": tmp_path / "plots"}
    evaluate_stage(chosen, prepared=prepared, metrics=tmp_path / "evaluation.json", **outputs)
    scores = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["trained"]
    assert list(scores) == ["task", "topics (kNN)", "search (nDCG@10)"]
    record = read_record(tmp_path / "records/trained")
    assert record.scores["tasks"]["topics"]["values"]["kNN"] == scores["topics (kNN)"]
    items = read_items(tmp_path / "records/trained" / ITEMS_FILE)
    assert items["tasks/topics"]["kNN"].mean() == pytest.approx(scores["topics (kNN)"], abs=1e-4)
    assert "search (times 100; retrieval: 2 queries, 118 documents" in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_bare_backbones_bundle_does_not_pass_for_a_checkpoint(models, data, settings, tmp_path, precision):
    """A prompt of one vector moves vectors less than a tolerance for int8 would allow."""
    made = settings({
        "data.view": "triplets", "prompt.length": 1, "prompt.position_shift": False, "train.learning_rate": 1e-6,
        "train.epochs": 1, "export.precision": precision, "export.score_loss": 100.0,
    })  # fmt: skip
    facts = train_in(tmp_path, made, data["triplets"])
    for model in (tmp_path / "checkpoint", models["bert"]):
        export_stage(made, model=model, prepared=data["triplets"], metrics=(), bundle=tmp_path / f"of-{model.name}")
    places = {"checkpoint": tmp_path / "checkpoint", "prepared": data["triplets"], "promoted": None}
    found = judge(made, bundle=tmp_path / "of-checkpoint", **places)
    assert found.passed, found.reasons
    assert found.difference < {"fp32": 1e-5, "int8": 0.05}[precision]
    assert precision == "int8" or found.dev == pytest.approx(facts["dev_spearman"], abs=0.01), "ONNX and torch agree"
    found = judge(made, bundle=tmp_path / "of-bert", **places)
    assert not found.passed and found.difference is None
    assert "no parity with torch" in found.reasons[0]
