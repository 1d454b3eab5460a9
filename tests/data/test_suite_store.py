"""The full evaluation's data in Arrow: a folder survives the round trip."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cse.data.prepare import prepare
from cse.data.store import REPORT_FILE, PreparedData
from cse.data.suite import SuiteData, open_suite, read_suite
from cse.data.tasks.kinds import CaptionPairs, Labelled, Splits, TransferTask
from cse.data.tasks.store import write_tasks
from cse.settings.data import DataSettings
from tests.evaluation.test_sts import make_task

SHARED = Path(__file__).parents[3] / "shared/data"


def same(one, other):
    """Compare nested data classes with arrays in them."""
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


def stored(suite, folder):
    write_tasks(folder, test=suite.test, own=suite.own)
    (folder / REPORT_FILE).write_text(json.dumps({"evaluation": {"suite_missing": suite.missing}}), encoding="utf-8")
    return open_suite(PreparedData(folder))


@pytest.fixture
def suite():
    rng = np.random.default_rng(0)

    def part(rows, second=False):
        texts = [f"text {i}" if i else "" for i in range(rows)]  # an empty text stays one
        return Labelled(texts, rng.integers(0, 3, rows), [f"other {i}" for i in range(rows)] if second else None)

    captions = [f"caption {i}" for i in range(5)]
    return SuiteData(
        [
            make_task("STS12", {"one": 4, "two": 3}),
            Splits("STS-B", {split: make_task(f"STS-B {split}", {"news": 5}) for split in ("train", "test")}),
            TransferTask("CR", part(6)),
            TransferTask("SST-2", part(5), part(3), part(4)),
            TransferTask("MRPC", part(5, second=True), None, part(4, second=True)),
            CaptionPairs(captions, captions[::-1], np.linspace(0, 5, 5), np.arange(5), np.arange(5) // 2),
        ],
        missing=["TREC (TREC/train_5500.label)"],
    )


def test_what_was_written_comes_back(suite, tmp_path):
    assert same(stored(suite, tmp_path), suite)


def test_reading_tasks_imports_no_pandas(suite, tmp_path):
    stored(suite, tmp_path)
    code = (
        "import sys; from cse.data.store import PreparedData; from cse.data.suite import open_suite\n"
        f"open_suite(PreparedData({str(tmp_path)!r}))\n"
        "print(*{'pandas', 'datasets', 'torch'}.intersection(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="no evaluation data here")
def test_real_data_are_the_same_through_prepare(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "rows.csv").write_text("sent0,sent1,hard_neg\na,b,c\n", encoding="utf-8")
    settings = DataSettings(
        source="files", train_path=str(tmp_path / "rows.csv"), dev_path=str(tmp_path / "dev"),
        evaluation_path=str(SHARED / "senteval"), cxc_path=str(SHARED / "cxc"),
    )  # fmt: skip
    report = prepare(settings, tmp_path / "out")
    assert report["evaluation"]["captions"] == 44_045
    assert report["evaluation"]["transfer"]["SST-2"] == 67_349 + 872 + 1_821
    assert same(open_suite(PreparedData(tmp_path / "out")), read_suite(SHARED / "senteval", SHARED / "cxc"))
