"""`cse adapt` on a tiny backbone: the screen it prints, what it leaves, and that it goes on where it was killed."""

from __future__ import annotations

import csv
import json
from random import Random

import pytest

from cse.adapt.run import Adaptation
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.cli.workspace import write_params

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "bird", "red", "small", "old", "house", "rain", "sleeps"]


@pytest.fixture
def place(tiny_folders, tmp_path, monkeypatch):
    """A folder with settings and seventy labelled texts."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    random = Random(0)
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "category"])
        for label in range(5):
            for _ in range(14):
                text = f"{WORDS[label]} {WORDS[label + 3]} {' '.join(random.sample(WORDS, 4))}"
                writer.writerow([text, f"label {label}"])
    return tmp_path


LABELS = ("adapt", "--labels", "labels.csv", "-s", "train.max_length=16", "-s", "train.batch_size=8")


@pytest.mark.slow
def test_one_training_and_an_answer_within_a_short_budget(cse, place):  # noqa: F811
    done = cse(*LABELS, "--budget", "20s", "--out", "out")
    assert done.code == 0, done.err
    lines = done.out.splitlines()[-8:]
    assert any("labels kNN:" in line and "95 % interval" in line and "35 items" in line for line in lines), done.out
    assert any(line.startswith("general similarity: not measured") for line in lines)
    assert (place / "out/report/report.html").is_file()
    assert "Is it better?" in (place / "out/report/report.html").read_text()
    assert OnnxEncoder(place / "out/bundle", provider="cpu").encode("the cat").shape == (32,)
    assert (place / "out/summary.txt").read_text() in done.out
    again = cse(*LABELS, "--budget", "20s", "--out", "out")
    assert again.code == 0
    assert "step" not in again.err, "nothing is trained again"
    assert again.out.splitlines()[-1] == done.out.splitlines()[-1]


@pytest.mark.slow
def test_a_killed_adaptation_goes_on(cse, place, monkeypatch):  # noqa: F811
    measure, killed = Adaptation._measure, []

    def once(self, name, checkpoint):
        if name != "backbone" and not killed:
            killed.append(name)
            raise KeyboardInterrupt
        return measure(self, name, checkpoint)

    monkeypatch.setattr(Adaptation, "_measure", once)
    first = cse(*LABELS, "--budget", "20s", "--out", "out")
    assert first.code != 0
    steps = json.loads((place / "out/journal.json").read_text())["steps"]
    assert {"prepare", "measure the backbone", "train", "search"} <= steps.keys()
    done = cse(*LABELS, "--budget", "20s", "--out", "out")
    assert done.code == 0, done.err
    after = json.loads((place / "out/journal.json").read_text())["steps"]
    assert {name: after[name] for name in steps} == steps
    assert "export" in after


def test_another_adaptation_in_the_same_folder_is_refused(cse, place):  # noqa: F811
    (place / "out").mkdir()
    (place / "out/notes.txt").write_text("mine")
    done = cse(*LABELS, "--out", "out")
    assert (done.code, done.err.splitlines()[-1]) == (
        2, "error: out: holds something else; name another folder with --out",
    )  # fmt: skip
    assert (place / "out/notes.txt").read_text() == "mine"


def test_a_budget_too_short_for_one_training(cse, place):  # noqa: F811
    done = cse(*LABELS, "--budget", "0.1s", "--out", "out")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("error: --budget: one training and its measures need 1 minutes here")
    assert "step" not in done.err, "it is said before training"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("adapt", "--labels", "labels.csv", "--task", "labels.csv"), "--task and --labels: give one of them"),
        (("adapt", "labels.csv", "--labels", "labels.csv"), "--labels names the text to train on; leave SOURCE out"),
        (("adapt", "labels.csv", "--budget", "soon"), "'soon' is no time; write 90s, 45m or 2h"),
    ],
)
def test_mistakes_are_one_line(cse, place, arguments, message):  # noqa: F811
    done = cse(*arguments)
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
def test_a_search_three_seeds_and_full_fine_tuning(cse, place):  # noqa: F811
    done = cse(*LABELS, "--budget", "10m", "--compare", "full", "--out", "out")
    assert done.code == 0, done.err
    assert "3 seeds" in done.out
    assert "full fine-tuning against prompts:" in done.out
    assert "best of 3 settings" in done.err
    steps = json.loads((place / "out/journal.json").read_text())["steps"]
    assert {f"measure {system}-{seed}" for system in ("prompts", "full") for seed in (42, 43, 44)} <= steps.keys()


def test_nothing_to_measure_is_said_before_training(cse, place):  # noqa: F811
    (place / "lines.txt").write_text("".join(f"{a} {b}\n" for a in WORDS for b in WORDS))
    done = cse("adapt", "lines.txt", "-s", "train.max_length=16", "-s", "mine.neighbours=3", "--out", "out")
    assert (done.code, done.err.splitlines()[-1]) == (
        2, "error: nothing to measure: name a task with --task, or prepare rows that can be held out",
    )  # fmt: skip
