from __future__ import annotations

from flows.artifacts import Summary, as_markdown, read_scores, read_shortfall, score_table
from flows.train_cse import ended
from tests.flows.repositories import write, write_json

EVALUATION = {
    "trained": {"STS-B": 84.5, "Avg.": 84.5, "intents (kNN)": 91.0},
    "backbone": {"STS-B": 82.03, "Avg.": 82.03, "intents (kNN)": 90.0},
}


def finished(folder) -> Summary:
    write_json(folder / "data/metrics/train.json", {"dev_spearman": 88.0})
    write_json(folder / "data/metrics/evaluation.json", EVALUATION)
    write(folder / "data/plots/sts.csv", "task,model,spearman\nSTS-B,trained,84.5\nSTS-B,backbone,82.03\n")
    write(folder / "data/plots/train/train.csv", "step,loss\n5,2.0\n10,1.5\n")
    write(folder / "data/plots/train/dev.csv", "step,spearman\n10,88.0\n")
    stages = [("prepare", "Skipped", 0.4), ("train", "Executed", 61.2), ("evaluate", "Restored", 2.0)]
    return Summary("wise-owl", folder, stages=stages)


def test_scores_against_the_run_before(tmp_path):
    summary = finished(tmp_path)
    summary.before = {"dev": 87.5, "trained STS-B": 84.75}
    text = as_markdown(summary)
    assert "Dev Spearman * 100: **88.00**, +0.50 compared with the previous run." in text
    assert "| trained STS-B | 84.50 | -0.25 |" in text
    assert "| backbone STS-B | 82.03 | new |" in text
    assert "| trained intents (kNN) | 91.00 | new |" in text  # a task of one's own
    assert "| times 100: Spearman, or the measure in brackets | this run | change |" in text
    assert "| train | Executed | 61 s |" in text
    assert text.count("](data:image/png;base64,") == 2
    write_json(tmp_path / "data/metrics/train.json", {"dev_spearman": 88.0, "trained_on": "sample, 3,000 triplets"})
    assert "previous run. Trained on sample, 3,000 triplets." in as_markdown(summary)
    write_json(tmp_path / "data/metrics/train.json", {"dev_score": 91.5, "dev_measure": "kNN"})
    text = as_markdown(summary)
    assert "Dev kNN * 100: **91.50**" in text
    assert "| times 100: Spearman, or the measure in brackets; dev: kNN | this run | change |" in text
    assert read_scores(tmp_path)["dev"] == 91.5


def test_a_model_below_its_backbone_is_said_in_state_and_summary(tmp_path):
    summary = finished(tmp_path)
    assert read_shortfall(tmp_path / "nothing") == read_shortfall(tmp_path) == ""
    assert (ended(summary, "dev 88.00").name, "below" in as_markdown(summary)) == ("Completed", False)
    rows = "STS-B,trained,84.5\nSTS-B,backbone,82.5\nSTS12,trained,60\nSTS12,backbone,70\n"
    write(tmp_path / "data/plots/sts.csv", f"task,model,spearman\n{rows}")
    summary.shortfall = read_shortfall(tmp_path)
    assert summary.shortfall == "below its bare backbone: 72.25 against 76.25 (mean of 2 tasks)"
    assert f"**The model is {summary.shortfall}.**" in as_markdown(summary)
    state = ended(summary, "dev 88.00")
    assert (state.name, state.is_completed()) == ("Below backbone", True)
    summary.reason = "not promoted"
    assert ended(summary, "not promoted").name == "Refused"


def test_a_failed_run_shows_the_reason_and_no_old_scores(tmp_path):
    summary = finished(tmp_path)
    summary.stages = [("prepare", "Executed", 1.0), ("train", "Failed", 2.0)]
    summary.reason = "train: train.batch_size: too large; lower it"
    text = as_markdown(summary)
    assert "**train: train.batch_size: too large; lower it**" in text
    assert "88.00" not in text
    assert "data:image" not in text


def test_scores_of_an_empty_or_broken_folder(tmp_path):
    assert read_scores(tmp_path) == {}
    assert score_table(tmp_path) == []
    write(tmp_path / "data/metrics/train.json", "not json")
    assert read_scores(tmp_path) == {}
