"""An adaptation that was killed, or lost a part, ends as an undisturbed one does."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from cse.adapt import journal, run
from cse.adapt.journal import Journal
from cse.adapt.plan import Pace
from cse.errors import CseError
from cse.outputs import Kind, publish_folder
from cse.training.observers import CsvLog
from tests.adapt.test_adapt import AS_MANY, place  # noqa: F401 - a fixture
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.cli.workspace import contents

MODELS = ("runs/prompts-42/checkpoint", "runs/prompts-43/checkpoint", "bundle", "params.yaml")


def models(out: Path) -> dict[str, bytes]:
    """Every byte of the models, without their manifests of published files."""
    found = {f"{name}/{file}": data for name in MODELS for file, data in contents(out / name).items()}
    assert len(found) > 8
    return found


def steps_in(out: Path) -> dict:
    return json.loads((out / "journal.json").read_text())["steps"]


def without_times(text: str) -> list[str]:
    """The last lines of the screen without what a part made again adds to the time."""
    return [re.sub(r", \d+ s\b", "", line) for line in text.splitlines()[-9:-1]]


class Clock:
    """Ten steps take as many seconds, and nothing else takes any, until the clock goes mad."""

    def __init__(self) -> None:
        self.now, self.pace = 0.0, 0.2

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A clock for the adaptation, which only training moves on; the bundle is a copy, to save time."""
    clock, step = Clock(), CsvLog.step

    def stepped(self, record) -> None:
        step(self, record)
        clock.now += clock.pace * 5  # a record comes every five steps

    monkeypatch.setattr(CsvLog, "step", stepped)
    monkeypatch.setattr(journal, "time", clock)
    monkeypatch.setattr(run, "export_stage", copy)
    monkeypatch.setattr(run, "time_training", lambda *_: Pace(0, clock.pace, 0), raising=False)
    return clock


def copy(settings, *, model: Path, bundle: Path, **others) -> None:
    with publish_folder(bundle, Kind.BUNDLE) as draft:
        shutil.copytree(model, draft / "model")


BUDGET = ("--budget", "40s", "-s", "train.max_steps=10")  # ten steps take 2 s: two rates, three seeds of one epoch


@pytest.mark.slow
def test_a_killed_adaptation_ends_in_the_same_models(cse, place, clock, monkeypatch):  # noqa: F811
    done = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert done.code == 0, done.err
    undisturbed, plan = models(place / "out"), steps_in(place / "out")["plan"]["result"]
    assert done.out.count("\ntrained 10 steps") == 4, "no rate is trained twice: the best trial is the first seed"
    shutil.rmtree(place / "out")

    write, logged = Journal._write, CsvLog.step
    left = {"time prompts", "plan", "try prompts-0.2", "train prompts-42"}
    fives: list[int] = []

    def before_it_is_written(self) -> None:
        """The work of a step is done, its record is not."""
        if now := self.steps.keys() & left:
            left.difference_update(now)
            raise KeyboardInterrupt
        write(self)

    def amid_training(self, record) -> None:
        """The first trial and the second seed get a signal after five of ten steps."""
        logged(self, record)
        if record.step == 5:
            fives.append(5)
            if len(fives) in (1, 4):  # the second trial is killed after its training, so it is there twice
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Journal, "_write", before_it_is_written)
    monkeypatch.setattr(CsvLog, "step", amid_training)
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(cse(*AS_MANY, *BUDGET, "--out", "out").code)
        if "plan" in steps_in(place / "out"):
            clock.pace = 50.0
        assert len(codes) < 10
    assert (sorted(codes), len(fives), left) == ([0, 130, 130, 130, 130, 143, 143], 5, set())
    assert steps_in(place / "out")["plan"]["result"] == plan
    assert models(place / "out") == undisturbed


@pytest.mark.slow
def test_ctrl_c_ends_the_ladder_with_the_best_so_far(cse, place, clock, monkeypatch):  # noqa: F811
    logged = CsvLog.step

    def interrupted(self, record) -> None:
        logged(self, record)
        if clock.now > 3:  # at the end of the second rate
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(CsvLog, "step", interrupted)
        done = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert done.code == 130
    lines = done.out.splitlines()
    assert re.search("^in the bundle: (head|prompts_head-42) ", done.out, re.MULTILINE), "the second seed is not there"
    assert any("labels held out kNN: " in line for line in lines), "it was measured"
    assert lines[-2] == "note: stopped before the end; the same command goes on"
    assert (place / "out/bundle/model/checkpoint.json").is_file()
    again = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert again.code == 0, again.err
    assert "  prompts with a head: dev " in again.out and "stopped" not in again.out
    (shipped,) = (line.split()[3] for line in again.out.splitlines() if line.startswith("in the bundle: "))
    facts = [
        json.loads((place / f"out/{of}/checkpoint.json").read_text())["facts"]
        for of in ("bundle/model", f"runs/{shipped}/checkpoint")
    ]
    assert facts[0] == facts[1], "the bundle is what the whole ladder chose"


@pytest.mark.slow
def test_a_part_that_went_missing_is_made_again(cse, place, clock):  # noqa: F811
    done = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert done.code == 0, done.err
    out = place / "out"
    whole, said = models(out), without_times(done.out)
    for name in ("prepared", "trials", "runs", "records", "bundle"):
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
        done = cse(*AS_MANY, *BUDGET, "--out", "out")
        assert done.code == 0, (name, done.err)
        assert ("missing, or not whole; making it again" in done.err) == (name != "trials"), name
        assert (out / name).exists() == (name != "trials"), name
        assert without_times(done.out) == said
    (out / "runs/prompts-43/checkpoint/checkpoint.json").unlink()
    assert cse(*AS_MANY, *BUDGET, "--out", "out", "--again").code == 0
    assert models(out) == whole


def test_a_plan_is_kept_and_not_bent(tmp_path):
    """Until there is one, another budget may be tried."""
    out = tmp_path / "out"
    Journal(out, {}, [], asked={"budget": 1}).run("prepare", lambda: None)
    Journal(out, {}, [], asked={"budget": 2}).run("plan", lambda: {"seeds": 3})
    with pytest.raises(
        CseError, match=r"an adaptation to other text, or with other settings, --budget or backbone \(shared or own\); "
    ):
        Journal(out, {}, [], asked={"budget": 3})
    assert Journal(out, {}, [], asked={"budget": 2}).steps.keys() == {"prepare", "plan"}
    assert Journal(out, {}, [], asked={"budget": 3}, again=True).steps == {}


JOURNAL = {
    "identity": "",
    "asked": {},
    "steps": {"plan": {"seconds": 1.0, "result": {"seeds": 3}}},
}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"3",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps(JOURNAL).encode(),
        json.dumps(JOURNAL | {"steps": []}).encode(),
        json.dumps(JOURNAL | {"steps": {"prepare": None}}).encode(),
        json.dumps(JOURNAL | {"steps": {"prepare": {"seconds": "1"}}}).encode(),
    ],
)
def test_a_damaged_journal_is_one_line(tmp_path, damaged):
    Journal(tmp_path / "out", {}, [], asked={})
    (tmp_path / "out/journal.json").write_bytes(damaged)
    for again in (False, True):
        with pytest.raises(CseError, match=r"journal\.json: .*; name another folder with --out$"):
            Journal(tmp_path / "out", {}, [], asked={}, again=again)
    assert (tmp_path / "out/journal.json").read_bytes() == damaged


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seeds": 3', '"seeds": 4'),
        ('"seconds": 0.0', '"seconds": -1'),
        ('"seconds": 0.0', '"seconds": NaN'),
        ('"plan"', '"other"'),
        ('"identity"', '"Identity"'),
    ],
)
def test_a_journal_that_was_changed_is_refused(tmp_path, monkeypatch, old, new):
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: 0.0))
    Journal(tmp_path / "out", {}, [], asked={}).run("plan", lambda: {"seeds": 3})
    path = tmp_path / "out/journal.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CseError, match=r"journal\.json: changed since it was written"):
        Journal(tmp_path / "out", {}, [], asked={})


def test_a_step_is_done_again_only_if_something_of_it_is_missing(tmp_path):
    done = Journal(tmp_path / "out", {}, [], asked={})
    made, calls = tmp_path / "made.txt", []

    def work() -> int:
        calls.append(len(calls))
        made.write_text("made")
        return len(calls)

    assert [done.run("one", work, [made]), done.run("one", work, [made])] == [1, 1]
    made.unlink()
    assert [done.run("one", work, [made]), Journal(tmp_path / "out", {}, [], asked={}).run("one", work)] == [2, 2]


def test_a_step_whose_output_another_replaces_is_forgotten(tmp_path):
    done = Journal(tmp_path / "out", {}, [], asked={})
    for name in ("export head", "export prompts-42"):
        done.run(name, lambda: None)
        done.forget(other for other in ("export head", "export prompts-42") if other != name)
    assert Journal(tmp_path / "out", {}, [], asked={}).steps.keys() == {"export prompts-42"}
