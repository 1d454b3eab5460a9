"""A ledger by example: what is on record is not done again, whoever is killed, fails, or comes with another plan."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cse import ledger as module
from cse.errors import CseError
from cse.ledger import Ledger, OtherPlanError, RunRecord
from cse.outputs import Kind, publish_folder
from tests.parts import refusal

OF = {"train.seed": 42, "the rows": "0f3a"}


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "runs")


def set_clock(monkeypatch, *times: float) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=iter(times).__next__))


def test_a_run_is_done_once(ledger, monkeypatch):
    set_clock(monkeypatch, 10.0, 12.5)
    work = Mock(side_effect=[{"dev": 81.5, "steps": (0, 3)}])
    first = ledger.run("train prompts-42", work, of=OF)
    assert first == ledger.run("train prompts-42", work, of=OF)
    assert first == RunRecord(OF, {"dev": 81.5, "steps": [0, 3]}, "", 2.5), "a JSON value, the first time too"
    assert (work.call_count, ledger.names()) == (1, ["train prompts-42"])


def test_a_failed_run_is_on_record_with_its_reason(ledger):
    work = Mock(side_effect=[KeyError("no such\nrow"), "done"])
    failed = ledger.run("one", work, of=OF, fails=lambda error: isinstance(error, KeyError))
    assert (failed.reason, failed.result) == ("KeyError: 'no such\\nrow'", None)
    assert ledger.run("one", work, of=OF) == failed
    ledger.forget("one", "never heard of")
    assert ledger.run("one", work, of=OF).result == "done", "forgotten, it may be tried again"


def test_a_record_of_another_plan_is_refused_in_one_line(ledger):
    assert ledger.check("one", OF, "setting plain", "give it another name") is None
    ledger.write("one", RunRecord(OF))
    assert ledger.check("one", {**OF}, "setting plain", "give it another name") == RunRecord(OF)
    for other, said in (
        (OF | {"train.seed": 7}, "train.seed was 42 and is 7 now"),
        (OF | {"the rows": "9b1c"}, "the rows changed since"),
        (OF | {"backbone.texts.query": "find: "}, "backbone.texts.query was absent and is find:  now"),
        ({"the rows": "0f3a"}, "train.seed was 42 and is absent now"),
        (OF | {"the teachers": "4d"}, "the teachers changed since"),
    ):
        with pytest.raises(OtherPlanError, match=f"^setting plain: {said}; give it another name$"):
            ledger.check("one", other, "setting plain", "give it another name")


def test_a_run_that_depends_on_something_else_by_now_is_done_again(ledger):
    """Its old record goes first: whatever it made may be half of either."""
    work = Mock(side_effect=["of 42", CseError("no space left"), "of 7"])
    ledger.run("one", work, of={"train.seed": 42})
    refusal(ledger.run, "one", work, of={"train.seed": 7})
    assert ledger.read("one") is None
    assert ledger.run("one", work, of={"train.seed": 7}) == ledger.run("one", work, of={"train.seed": 7})
    assert (work.call_count, ledger.read("one").result) == (3, "of 7")


def test_what_went_missing_is_made_again_and_its_time_adds_up(ledger, tmp_path, capsys, monkeypatch):
    out = tmp_path / "model"
    set_clock(monkeypatch, 0.0, 1.0, 5.0, 7.0)

    def work() -> None:
        with publish_folder(out, Kind.CHECKPOINT) as folder:
            for name in ("config.json", "weights.bin"):
                (folder / name).write_text("x")

    assert [ledger.run("train one", work, makes=[out]).seconds for _ in "12"] == [1.0, 1.0]
    (out / "weights.bin").unlink()
    assert ledger.run("train one", work, makes=[out]).seconds == 3.0
    assert (out / "weights.bin").is_file()
    assert capsys.readouterr().err == f"{out}: missing, or not whole; making it again (train one)\n"


@pytest.mark.parametrize(("old", "new"), [('"dev": 81.5', '"dev": 91.5'), ("{", "")])
def test_a_record_that_was_changed_by_hand_is_refused(ledger, old, new):
    ledger.write("one", RunRecord(OF, {"dev": 81.5}))
    path = ledger.folder / "one.json"
    path.write_text(path.read_text().replace(old, new, 1))
    assert refusal(ledger.run, "one", pytest.fail).endswith("; delete it to train this one again")
