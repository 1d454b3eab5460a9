"""The view ``labelled``: two sentences and their NLI label."""

import json

import pytest

from cse.data.prepare import prepare
from cse.data.shape import read_rows
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


def settings(folder, text, name="train.csv", **more) -> DataSettings:
    for part in ("dev", "evaluation"):
        (folder / part).mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    paths = {"train_path": str(folder / name), "dev_path": str(folder / "dev")}
    return DataSettings(source="files", view="labelled", evaluation_path=str(folder / "evaluation"), **paths, **more)


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


def test_numbers_are_labels_in_the_order_of_glue(tmp_path):
    lines = [{"premise": "a b", "hypothesis": f"c {n}", "label": n} for n in (0, 1, 2, -1)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert [row.label for row in read_rows(path, "labelled")] == ["entailment", "neutral", "contradiction", None]


@pytest.mark.parametrize("label", ["yes", "3", "1.5"])
def test_another_label_is_named_with_its_line(tmp_path, label):
    text = f"premise,hypothesis,label\na,b,0\na,c,{label}\n"
    with pytest.raises(CseError, match=rf"train\.csv:3: label '{label}' is not one of entailment, neutral") as caught:
        prepare(settings(tmp_path, text), tmp_path / "out", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_own_columns_and_a_tab_separated_text_file(tmp_path):
    text = "a\tb\tneutral\nc\td\t0\n"
    path = tmp_path / "rows.txt"
    path.write_text(text, encoding="utf-8")
    assert [(row.texts, row.label) for row in read_rows(path, "labelled")] == [
        (("a", "b"), "neutral"),
        (("c", "d"), "entailment"),
    ]
    own = settings(tmp_path, "x,y,z\n2,a b,c d\n", columns=["y", "z", "x"])
    prepare(own, tmp_path / "out", progress=False)
    assert PreparedData(tmp_path / "out").train.to_pylist()[0] == {
        "sent0": "a b",
        "sent1": "c d",
        "label": "contradiction",
    }


def test_a_label_in_the_evaluation_text_drops_nothing(tmp_path):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "pairs.csv").write_text("sentence1,sentence2,score\nneutral,x,1\nz,y,2\n")
    text = "premise,hypothesis,label\na,b,neutral\n"
    report = prepare(settings(tmp_path, text), tmp_path / "out", progress=False)
    assert report["train"]["kept"] == 1
