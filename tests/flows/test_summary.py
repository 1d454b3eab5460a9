from __future__ import annotations

import pytest

from flows.train_cse import as_markdown, read_scores, read_shortfall
from tests.flows.repositories import write, write_json

EVALUATION = {
    "trained": {"STS-B": 84.5, "Avg.": 84.5, "intents (kNN)": 91.0},
    "backbone": {"STS-B": 82.03, "Avg.": 82.03, "intents (kNN)": 90.0},
}


@pytest.fixture
def finished(tmp_path):
    write_json(tmp_path / "data/metrics/train.json", {"dev_spearman": 88.0})
    write_json(tmp_path / "data/metrics/evaluation.json", EVALUATION)
    write(tmp_path / "data/plots/sts.csv", "task,model,spearman\nSTS-B,trained,84.5\nSTS-B,backbone,82.03\n")
    return tmp_path


def test_a_model_below_its_backbone_is_said(finished):
    assert read_shortfall(finished / "nothing") == read_shortfall(finished) == ""
    assert "below" not in as_markdown("wise-owl", finished, {}, {})
    rows = "STS-B,trained,84.5\nSTS-B,backbone,82.5\nSTS12,trained,60\nSTS12,backbone,70\n"
    write(finished / "data/plots/sts.csv", f"task,model,spearman\n{rows}")
    assert read_shortfall(finished) == "below its bare backbone: 72.25 against 76.25 (mean of 2 tasks)"
    assert f"**The model is {read_shortfall(finished)}.**" in as_markdown("wise-owl", finished, {}, {})


def test_an_empty_or_broken_folder_has_no_scores(tmp_path):
    assert (read_scores(tmp_path), as_markdown("wise-owl", tmp_path, {}, {})) == ({}, "# wise-owl\n\nFinished.\n")
    write(tmp_path / "data/metrics/train.json", "not json")
    assert read_scores(tmp_path) == {}
