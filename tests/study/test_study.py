"""A whole study from the command line: trained side by side, chosen, and only then tested."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cse.bench.ledger import Ledger, RunRecord
from cse.settings.load import load_settings
from cse.study.facts import facts_of
from cse.study.plan import read_study, runs_of
from cse.study.table import read_rows
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.study.workspace import write_study

pytestmark = pytest.mark.usefixtures("forked")

RUN = ("study", "run", "tiny.study.yaml")
OUT = Path(".cse/study/tiny")


@pytest.fixture
def place(tiny_folders, tmp_path, monkeypatch):
    write_study(tmp_path, tiny_folders["bert"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put_on_record(name: str, of: dict | None = None) -> None:
    """A run such as `screen/plain-42` that ended with some score."""
    setting, _, seed = Path(name).name.partition("-")
    identity = {"setting": setting, "seed": int(seed or 0), "round": name.rpartition("/")[0]}
    Ledger(OUT / "runs" / name).write("run", RunRecord(identity | (of or {}), {"dev": {"dev": 1.0}}))


def dev_of(round_name: str) -> dict[str, dict[str, float]]:
    return {f"{row.setting}-{row.seed}": dict(row.dev) for row in read_rows(OUT, round_name)}


@pytest.mark.slow
def test_test_sets_stay_closed_until_a_choice_is_on_record(cse, place):  # noqa: F811
    assert cse(*RUN, "whole", "--only", "plain", "--only", "full").code == 0
    shut = cse("study", "test", "tiny.study.yaml")
    assert shut.refused().endswith("choose first (`cse study choose`); the test sets stay closed until then")
    assert not list(OUT.glob("**/record"))
    other = cse("study", "choose", "tiny.study.yaml", "whole", "plane")
    assert other.refused() == "setting plane: not trained in round whole; did you mean 'plain'?"

    chosen = cse("study", "choose", "tiny.study.yaml", "whole", "plain", "full")
    assert "plain, full; no test set was open" in chosen.out
    done = cse("study", "test", "tiny.study.yaml", "--against", "full", "--pictures", "pictures")
    assert done.code == 0, done.err
    assert (place / "pictures/test.png").read_bytes().startswith(b"\x89PNG")
    drawn = (place / "pictures/test.csv").read_text(encoding="utf-8").splitlines()
    assert drawn[0] == "setting,run,STS"
    assert sorted(line.rpartition(",")[0] for line in drawn[1:]) == ["full,1", "full,2", "plain,1", "plain,2"]
    lines = done.out.partition("\n\n")[0].splitlines()[2:]  # below the choice and the header
    table = {line.split()[0]: line for line in lines}
    assert table.keys() == {"backbone", "plain", "full"}
    assert "±" in table["plain"]
    assert "±" not in table["backbone"]
    assert "plain (2 seeds) against full (2 seeds)" in done.out
    assert len(list(OUT.glob("**/record"))) == 5

    runs, ended = OUT / "runs/whole", {path: path.stat().st_mtime_ns for path in OUT.glob("**/record/record.json")}
    shutil.rmtree(runs / "plain-1/checkpoint")
    shutil.copytree(runs / "plain-2/checkpoint", runs / "plain-1/checkpoint")
    again = cse("study", "test", "tiny.study.yaml")
    assert "plain-1: " in again.err and "is of another model; measuring again" in again.err
    changed = [path for path, when in ended.items() if path.stat().st_mtime_ns != when]
    assert changed == [runs / "plain-1/record/record.json"]

    later = cse("study", "choose", "tiny.study.yaml", "whole", "full")
    assert "not blind" in later.out
    kept = json.loads((OUT / "choices.json").read_text(encoding="utf-8"))["result"]
    assert [(choice["settings"], choice["blind"]) for choice in kept] == [(["plain", "full"], True), (["full"], False)]


@pytest.mark.slow
def test_snapshots_and_pictures(cse, place):  # noqa: F811
    assert cse(*RUN, "path", "--only", "plain", "--only", "full").code == 0
    rows = {row.setting: row for row in read_rows(OUT, "path")}
    assert [step for step, _ in rows["plain"].snapshots] == [0, 3, 6]
    steps = [dict(dev) for _, dev in rows["plain"].snapshots]
    assert steps[0] != steps[1] != steps[2]
    best = dict(rows["plain"].snapshots)[rows["plain"].best_step]
    assert best == pytest.approx(dict(rows["plain"].dev))
    # full fine-tuning starts at the bare backbone
    assert dict(rows["full"].snapshots)[0]["dev"] == pytest.approx(rows["backbone"].dev["dev"], abs=1e-4)

    shown = cse("study", "show", "tiny.study.yaml", "--pictures", "pictures")
    assert shown.code == 0, shown.err
    for name in ("trade-off", "along-training"):
        assert (place / f"pictures/{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (place / f"pictures/{name}.csv").read_text(encoding="utf-8").startswith(("round,", "setting,"))


@pytest.mark.slow
def test_a_setting_that_fails_costs_no_other_and_is_tried_again(cse, place):  # noqa: F811
    study = place / "tiny.study.yaml"
    text = study.read_text(encoding="utf-8")
    study.write_text(text + "  wrong: {prompt.kind: hidden_state, prompt.init: checkpoint}\n", encoding="utf-8")
    failed = cse(*RUN, "screen", "--only", "plain", "--only", "wrong")
    assert failed.code == 2
    assert "1 trainings failed" in failed.err.splitlines()[-1]
    assert any(
        line.startswith("wrong") and "failed: prompt.init_checkpoint" in line for line in failed.out.splitlines()
    )
    assert dev_of("screen")["plain-42"]

    study.write_text(text + "  wrong: {prompt.kind: hidden_state}\n", encoding="utf-8")
    assert cse(*RUN, "screen", "--only", "plain", "--only", "wrong").code == 0
    assert dev_of("screen")["wrong-42"]


@pytest.mark.parametrize(
    ("recorded", "refused"),
    [
        ({"train.learning_rate": 0.5}, "setting fast: train.learning_rate was 0.5 and is 0.1 now; "),
        ({"backbone.texts.query": "find:"}, "setting fast: backbone.texts.query was find: and is absent now; "),
        ({"torch": "1.13"}, "setting fast: torch was 1.13 and is "),
        ({"device": "cuda"}, "setting fast: device was cuda and is cpu now; "),
        ({"precision": "bf16"}, "setting fast: precision was bf16 and is fp32 now; "),
        ({"the code": "0f3a"}, "setting fast: the code changed since; give the study another --out"),
    ],
)
def test_what_changed_after_its_training_is_refused(cse, place, recorded, refused):  # noqa: F811
    plan, settings = read_study(place / "tiny.study.yaml"), load_settings(Path("params.yaml"))
    fast = runs_of(plan, "screen", settings, ["fast"])[0]
    captions = Path("data/raw/cxc").resolve()
    put_on_record("backbone", facts_of(replace(fast, setting="backbone", seed=0), "screen", captions))
    put_on_record("screen/fast-42", facts_of(fast, "screen", captions) | recorded)
    assert refused in cse(*RUN, "screen").refused()


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ("../bert/config.json", "the bare backbone: the backbone's files changed since; give the study another --out"),
        ("raw/task/labels/test.csv", "the bare backbone: the files that scores are measured on changed since"),
        (
            "raw/train/rows.csv",
            "setting taught: the files with training rows changed since; give the study another --out",
        ),
        ("raw/teacher/config.json", "setting taught: the teachers of its distillation changed since"),
    ],
)
def test_files_that_changed_between_two_calls_are_refused(cse, place, tiny_folders, changed, refused):  # noqa: F811
    for copy in ("bert", "data/raw/teacher"):
        shutil.copytree(tiny_folders["bert"], place / copy)
    params = Path("params.yaml").read_text(encoding="utf-8")
    Path("params.yaml").write_text(params.replace(str(tiny_folders["bert"]), str(place / "bert")), encoding="utf-8")
    plan, settings = read_study(place / "tiny.study.yaml"), load_settings(Path("params.yaml"))
    taught = runs_of(plan, "screen", settings, ["taught"])[0]
    captions = Path("data/raw/cxc").resolve()
    for run, folder in ((replace(taught, setting="backbone", seed=0), "backbone"), (taught, "screen/taught-42")):
        put_on_record(folder, facts_of(run, "screen", captions))
    assert cse(*RUN, "screen", "--only", "taught").code == 0, "nothing changed"
    with (place / "data" / changed).open("a", encoding="utf-8") as stream:
        stream.write("\n" if changed.endswith("json") else "one,more,row\n")
    assert refused in cse(*RUN, "screen", "--only", "taught").refused()
