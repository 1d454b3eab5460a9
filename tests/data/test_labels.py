"""The views ``labelled``, two sentences and their NLI label, and ``categories``, pairs within a label."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.errors import CseError
from cse.settings.data import DataSettings

SNLI = (
    "gold_label,sentence1,sentence2\n"
    "entailment,A man eats.,Someone eats.\n"
    "-,A man eats.,A man is happy.\n"
    "Contradiction,A man eats.,Nobody eats.\n"
    "neutral,A man eats.,A man eats soup.\n"
    "neutral,A man eats.,A man eats soup.\n"
    "contradiction,A man eats.,A man eats soup.\n"
)


def settings(folder, text, name="train.csv", view="labelled", **more) -> DataSettings:
    for part in ("dev", "evaluation"):
        (folder / part).mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    paths = {"train_path": str(folder / name), "dev_path": str(folder / "dev")}
    return DataSettings(source="files", view=view, evaluation_path=str(folder / "evaluation"), **paths, **more)


def test_rows_without_a_gold_label_and_repeated_rows_are_dropped_and_counted(tmp_path):
    report = prepare(settings(tmp_path, SNLI), tmp_path / "out", progress=False)
    data = PreparedData(tmp_path / "out")
    assert data.view == "labelled"
    assert data.train["label"].to_pylist() == ["entailment", "contradiction", "neutral", "contradiction"]
    assert data.train.to_pylist()[1] == {"sent0": "A man eats.", "sent1": "Nobody eats.", "label": "contradiction"}
    dropped = {reason: entry for reason, entry in report["train"]["dropped"].items() if entry["count"]}
    assert dropped == {
        "no_label": {"count": 1, "first": "train.csv:3"},
        "duplicate": {"count": 1, "first": "train.csv:6"},
    }
    assert report["train"]["distinct_sentences"] == 4, "labels are no sentences"


def test_own_columns(tmp_path):
    own = settings(tmp_path, "x,y,z\n2,a b,c d\n-1,e,f\nN,g,h\n", columns=["y", "z", "x"])
    prepare(own, tmp_path / "out", progress=False)
    rows = [tuple(row.values()) for row in PreparedData(tmp_path / "out").train.to_pylist()]
    assert rows == [("a b", "c d", "contradiction"), ("g", "h", "neutral")]


def test_a_label_in_the_evaluation_text_drops_nothing(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "pairs.csv").write_text("sentence1,sentence2,score\nneutral,x,1\nz,y,2\n")
    text = "premise,hypothesis,label\na,b,neutral\n"
    report = prepare(settings(tmp_path, text), tmp_path / "out", progress=False)
    assert report["train"]["kept"] == 1


# ---- categories -----------------------------------------------------------------------------------------------------

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


categories = partial(settings, view="categories")


def test_every_text_is_an_anchor_and_a_positive_of_its_label(tmp_path):
    report = prepare(categories(tmp_path, CARDS), tmp_path / "out", progress=False)
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
        prepare(categories(tmp_path, "\n".join(lines), **more), tmp_path / name, progress=False)
        rows = PreparedData(tmp_path / name).train
        return list(zip(rows["sent0"], rows["sent1"], strict=True))

    assert partners("one") == partners("again") != partners("other", seed=7)
    assert len(partners("drawn", max_rows=9)) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,label\na b,x\nc d,x\n", r"^train.csv: one label only \(x\); pairs within labels need at least 2"),
        ("text,label\na b,x\nc d,y\n", r"^train.csv: all 2 rows were dropped: 2 alone_in_label \(first train.csv:2\)"),
    ],
)
def test_nothing_to_pair_is_one_line(tmp_path, text, message):
    with pytest.raises(CseError, match=message) as error:
        prepare(categories(tmp_path, text), tmp_path / "out", progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
