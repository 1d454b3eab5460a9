"""Stage ``evaluate``: whatever ``evaluation.measures`` names, as metrics, records and the data of plots."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from cse.data.store import REPORT_FILE, PreparedData
from cse.data.suite import SuiteData, read_cxc
from cse.data.tasks.kinds import Splits, TransferTask
from cse.data.tasks.store import open_dev, write_tasks
from cse.evaluation.record import read_record
from cse.model.backbone_files import find_backbone
from cse.report.systems import find_records, group
from cse.stages.common import shortfall
from cse.stages.evaluate import evaluate_stage
from tests.evaluation.test_cxc import make_rows, write
from tests.evaluation.test_sts import make_task
from tests.evaluation.test_transfer import part
from tests.stages.training import train_in
from tests.tiny import WORDS


def known(text: str) -> str:
    """The same text always as the same words of the tiny vocabulary."""
    rng = np.random.default_rng([*text.encode()])
    return " ".join(rng.choice(WORDS, 6))


def in_known_words(pairs):
    first, second = ([known(text) for text in side] for side in (pairs.sentence1, pairs.sentence2))
    return dataclasses.replace(pairs, sentence1=first, sentence2=second)


@pytest.fixture
def suite(tmp_path) -> SuiteData:
    names = enumerate(("train", "test"))
    splits = {split: in_known_words(make_task(f"STS-B {split}", {"news": 30}, seed=i)) for i, split in names}
    splits["test"].score[:3] = 5
    return SuiteData(
        [
            in_known_words(make_task("STS12", {"one": 20})),
            dataclasses.replace(splits["test"], name="STS-B"),
            Splits("STS-B", splits),
            TransferTask("CR", part(60, 2)),
            in_known_words(read_cxc(write(tmp_path / "cxc.csv", make_rows()))),
        ],
        missing=["TREC (TREC/train_5500.label)"],
    )


def test_every_measure_through_prepared_data(suite, data, settings, tmp_path, capsys, monkeypatch):
    compared = []
    monkeypatch.setattr("cse.stages.evaluate.shortfall", lambda scores: compared.append(scores) or "below its backbone")
    prepared = shutil.copytree(data["sentences"], tmp_path / "prepared")
    write_tasks(prepared, dev=open_dev(PreparedData(prepared)), test=suite.test)
    report = json.loads((prepared / REPORT_FILE).read_text(encoding="utf-8"))
    report["evaluation"]["suite_missing"] = suite.missing
    (prepared / REPORT_FILE).write_text(json.dumps(report), encoding="utf-8")
    measures = ["sts", "cxc", "transfer", "retrieval", "space"]
    chosen = settings({"evaluation.measures": measures, "train.parameters": "none", "prompt.kind": "none",
                       "prompt.length": 0, "pooler.kind": "mean"})  # fmt: skip
    train_in(tmp_path, chosen, prepared)
    outputs = {name: tmp_path / name for name in ("checkpoint", "plots", "records")}
    evaluate_stage(chosen, prepared=prepared, metrics=tmp_path / "evaluation.json", **outputs)
    found = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["trained"]
    assert {"STS12", "STS-B", "CxC-STS", "CR (accuracy)", "recall@1", "alignment", "uniformity"} <= set(found)
    assert not any(name.startswith("Avg.") for name in found)
    assert list(found)[:3] == ["mean of 2 tasks", "STS12", "STS-B"], "the average first"
    assert not any("mean)" in name or "mean of 1" in name for name in found), "one task has no average"
    record = read_record(tmp_path / "records/trained")
    assert record.scores["cxc"]["mean"] == pytest.approx(found["CxC-STS"], abs=1e-3)
    assert record.scores["missing"] == suite.missing
    # the baseline is the backbone that was trained on, not whatever its name means now
    backbone = find_backbone(chosen.backbone.name)
    recorded = {"name": backbone.name, "revision": "main", "sha256": backbone.sha256}
    assert read_record(tmp_path / "records/backbone").model["backbone"] == recorded
    curves = (tmp_path / "plots/density.csv").read_text(encoding="utf-8").splitlines()
    assert {line.split(",")[0] for line in curves[1:]} == {"trained", "backbone"}
    assert [system.name for system in group(find_records([tmp_path / "records"]))] == ["backbone", "trained"]
    said = capsys.readouterr().out
    assert "not measured: TREC (TREC/train_5500.label)" in said
    assert "the trained model is below its backbone\n" in said
    assert {name: set(tasks) for name, tasks in compared[0].items()} == {
        "trained": {"STS12", "STS-B"}, "backbone": {"STS12", "STS-B"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "bare", "said"),
    [
        ({"STS-B": 70.0, "STS12": 60.0}, {"STS-B": 72.0, "STS12": 61.0}, "65.00 against 66.50 (mean of 2 tasks)"),
        ({"STS-B": 70.0}, {"STS-B": 72.0}, "70.00 against 72.00 (STS-B)"),
        ({"STS-B": 72.0}, {"STS-B": 72.0}, ""),
        ({"STS-B": 72.0}, {}, ""),
    ],
)
def test_a_model_below_its_backbone_is_said(trained, bare, said):
    assert shortfall({"trained": trained, "backbone": bare}) == (said and f"below its bare backbone: {said}")
