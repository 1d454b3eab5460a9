"""The view ``categories``: pairs within a label."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.errors import CseError
from cse.settings.data import DataSettings

CARDS = (
    "text,category\n"
    "Where is my card?,arrival\n"
    "My card is lost.,lost\n"
    "Has my card been sent?,arrival\n"
    "When does my card come?,arrival\n"
    "Close my account.,close\n"  # alone
    "I cannot find my card.,lost\n"
    "My card is lost.,lost\n"  # a duplicate
    "My card is lost.,arrival\n"  # the same text with another label
    "Hello.,\n"
)


def settings(folder, text, name="train.csv", **more) -> DataSettings:
    for part in ("dev", "evaluation"):
        (folder / part).mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    paths = {"train_path": str(folder / name), "dev_path": str(folder / "dev")}
    return DataSettings(source="files", view="categories", evaluation_path=str(folder / "evaluation"), **paths, **more)


def test_every_text_is_an_anchor_and_a_positive_of_its_label(tmp_path):
    report = prepare(settings(tmp_path, CARDS), tmp_path / "out", progress=False)
    data = PreparedData(tmp_path / "out")
    assert (data.view, data.train.column_names) == ("pairs", ["sent0", "sent1", "group"])
    assert data.train["sent0"].to_pylist() == [
        *("Where is my card?", "My card is lost.", "Has my card been sent?", "When does my card come?"),
        *("I cannot find my card.", "My card is lost."),
    ]
    assert data.train["group"].to_pylist() == ["arrival", "lost", "arrival", "arrival", "lost", "arrival"]
    first, second, groups = (data.train[name] for name in ("sent0", "sent1", "group"))
    assert all(a != b for a, b in zip(first, second, strict=True))
    for column in (first, second):
        assert Counter(zip(column, groups, strict=True)).most_common(1)[0][1] == 1
    assert (report["view"], report["made_from"], report["train"]["kept"]) == ("pairs", "categories", 6)
    dropped = {reason: entry for reason, entry in report["train"]["dropped"].items() if entry["count"]}
    assert dropped == {
        "alone_in_label": {"count": 1, "first": "train.csv:6"},
        "duplicate": {"count": 1, "first": "train.csv:8"},
        "no_label": {"count": 1, "first": "train.csv:10"},
    }


def test_the_seed_decides_who_meets_whom(tmp_path):
    lines = ["text,label", *(f"text {i},{i % 3}" for i in range(31))]

    def partners(name: str, **more) -> list[tuple[str, str]]:
        prepare(settings(tmp_path, "\n".join(lines), **more), tmp_path / name, progress=False)
        rows = PreparedData(tmp_path / name).train
        return list(zip(rows["sent0"], rows["sent1"], strict=True))

    assert partners("one") == partners("again") != partners("other", seed=7)
    assert len(partners("drawn", max_rows=9)) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,label\na b,x\nc d,x\n", r"^train.csv: one label only \(x\); pairs within labels need at least 2"),
        ("text,label\na b,x\nc d,y\n", r"^train.csv: all 2 rows were dropped: 2 alone_in_label \(first train.csv:2\)"),
        ("text,kind\na b,x\n", r"no column 'category' for data.view: categories"),
    ],
)
def test_nothing_to_pair_is_one_line(tmp_path, text, message):
    with pytest.raises(CseError, match=message) as error:
        prepare(settings(tmp_path, text), tmp_path / "out", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_label_that_is_a_list_is_one_line(tmp_path):
    text = json.dumps({"text": "a", "label": ["x"]})
    with pytest.raises(CseError, match=r"rows.jsonl:1: label \"\['x'\]\" is neither text nor a number"):
        prepare(settings(tmp_path, text, "rows.jsonl"), tmp_path / "out", progress=False)
