"""`cse adapt --labels` of few rows or names alone: the bare backbone classifies, and the screen says what is known."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from cse.adapt.few import share
from cse.adapt.ladder import BARE, CLASSIFY, FEW_ROWS, HEAD, LABELS, PROMPTS, SEARCH, Ladder
from cse.adapt.look import look
from cse.adapt.models import Models
from cse.data.tasks.kinds import LabelledTexts
from cse.evaluation.classifier import Rows, fit_classifier
from cse.ledger import Ledger
from cse.runtime.encode import unit_rows
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from tests.rows import write_lines, write_objects, write_table

LABELS_OF = {"red cat": ["red cat sat", "the red cat", "a red old cat"], "small_dog": ["small dog", "a small dog sat",
             "the small dog sleeps"], "house": ["the house", "old house", "rain on a house"]}  # fmt: skip


COLUMNS = ("text", "label")


def table(rows: int) -> list[tuple[str, str]]:
    return [(text, label) for label, texts in LABELS_OF.items() for text in texts[:rows]]


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_make_a_classifier_and_the_screen_says_how_sure_that_is(cse, place, rows):
    write_table(place / "few.csv", COLUMNS, table(rows))
    done = cse("adapt", "--labels", "few.csv", "--out", "out")
    assert done.code == 0, done.err
    assert f"labelled texts, {3 * rows} of 3 labels, {rows} a label in the median: nothing is trained" in done.err
    assert "training" not in done.err and "in the bundle: the bare backbone, and a classifier of 3 labels" in done.out
    encoder = OnnxEncoder(place / "out/bundle", provider="cpu")
    facts = encoder.classifier.facts
    assert facts.labels == sorted(LABELS_OF) and facts.rows == (3 * rows if rows == 3 or facts.names else 0)
    if facts.rows:
        line = f"accuracy {share(round(facts.accuracy * facts.rows), facts.rows)}: of {3 * rows} texts, each told by"
        assert line in done.out
    else:
        assert "Nothing is known of its accuracy: no label has two texts" in done.out
    texts, labels = map(list, zip(*table(rows), strict=True))
    names = Rows(encoder.encode(["house", "red cat", "small dog"], normalize=True), sorted(LABELS_OF))
    expected = fit_classifier(Rows(encoder.encode(texts, normalize=True), labels), names)
    np.testing.assert_allclose(encoder.classifier.weight, expected.weight, atol=1e-4)
    assert cse("adapt", "--labels", "few.csv", "--out", "out").code == 0, "the same command may run again"
    write_table(place / "few.csv", COLUMNS, table(2))
    assert cse("adapt", "--labels", "few.csv", "--out", "out").err.endswith("with --again\n")


def test_a_folder_with_test_rows_is_measured_on_them_and_does_not_know_them(cse, place):
    test = [(text, label) for label, texts in LABELS_OF.items() for text in texts[1:]]
    write_table(place / "few/test.csv", COLUMNS, test)
    write_table(place / "few/train.csv", COLUMNS, table(2))
    done = cse("adapt", "--labels", "few", "--out", "out")
    assert "left out: 3 of 6 texts, since they are test texts" in done.err
    encoder = OnnxEncoder(place / "out/bundle", provider="cpu")
    right = sum(told.label == own for told, (_, own) in zip(encoder.classify([t for t, _ in test]), test, strict=True))
    assert f"few accuracy {share(right, 6)}: of 6 test texts" in done.out, done.err
    assert "from 4 of a label on, models are trained" in done.out, "not 6: none is held out to measure"
    assert encoder.classifier.facts.rows in (0, 3), "not 6: the second text of each label is a test text"


DESCRIBED = ["intent,description", "red cat,a cat that is red", "small_dog,a dog that is small", "house,"]


def test_names_alone_are_a_classifier_and_nothing_is_claimed(cse, place):
    for name, lines, described in (
        ("names.txt", [*LABELS_OF], ["red cat", "small dog", "house"]),
        ("names.csv", DESCRIBED, ["a cat that is red", "a dog that is small", "house"]),
    ):
        write_lines(place / name, lines)
        done = cse("adapt", "--labels", name, "--out", name[-3:])
        assert f"{name}: names of 3 labels and no text: nothing is trained" in done.err
        assert "No text has a label, so nothing is known of how often names alone are right" in done.out, done.err
        encoder = OnnxEncoder(place / name[-3:] / "bundle", provider="cpu")
        assert [told.label for told in encoder.classify(described)] == [*LABELS_OF]
        assert encoder.classifier.facts.rows == 0


def test_names_that_say_nothing_are_left_out_and_a_file_of_names_replaces_them(cse, place):
    write_table(place / "few.csv", COLUMNS, [(text, f"label {len(label)}") for text, label in table(3)])
    names = [("the red cat", "label 7"), ("small dog", "label 9"), ("old house", "label 5")]
    write_table(place / "names.csv", COLUMNS, names)
    plain = cse("adapt", "--labels", "few.csv", "--out", "plain")
    assert "names are left out, since they tell texts no better than chance" in plain.out, plain.err
    named = cse("adapt", "--labels", "few.csv", "--label-names", "names.csv", "--out", "named")
    assert "no better than chance" not in named.out, named.err
    write_table(place / "names.csv", COLUMNS, [("the red cat", "label 77")])
    other = cse("adapt", "--labels", "few.csv", "--label-names", "names.csv", "--out", "other")
    assert (other.code, "label 'label 77' ('the red cat') is none of the texts" in other.err) == (2, True)


def test_so_many_rows_a_label_are_trained_on_and_fewer_make_a_classifier(tmp_path):
    path = tmp_path / "train.csv"
    for labels, rows in ((tmp_path, 4), (path, 6)):  # with and without test rows
        for count in (rows, rows - 1):
            texts = [(f"text {number} {label}", label) for label in "abc" for number in range(count)]
            write_table(path, COLUMNS, [*texts, ("text 0 a", "b"), ("text 1 a", "b")])
            write_table(tmp_path / "test.csv", COLUMNS, texts)
            few = look([], labels=labels).few
            assert (few is None) == (count == rows), "texts of two labels are left out, and the median is the same"


class Points:
    """An encoder of texts that are numbers."""

    def __init__(self, **vectors: list[float]) -> None:
        self.vectors = vectors

    def encode(self, texts, **_):
        return unit_rows(np.array([self.vectors.get(text, [0.0, 0.0, 1.0]) for text in texts], np.float32))


def test_rows_without_text_or_label_are_left_out_and_counted(tmp_path):
    blank = [("", "house"), ("   ", "house"), ("N/A", "red cat"), ("a house", ""), ("", "")]
    found = look([], labels=write_table(tmp_path / "few.csv", COLUMNS, [*table(3), *blank]))
    assert found.few.reference == [text for text, _ in table(3)]
    assert found.told.endswith("3 a label in the median; rows without a text or a label: 4 of 13")


def test_the_screen_says_how_much_a_label_lacked(cse, place):
    rows = [*table(3), *((f"house {number}", "house") for number in range(3))]
    write_table(place / "few.csv", COLUMNS, rows)
    assert (
        "its label has a fifth of its texts, or one, fewer" in cse("adapt", "--labels", "few.csv", "--out", "out").out
    )


@pytest.mark.parametrize(("use", "kind", "ships"), [(CLASSIFY, LABELS, BARE), (CLASSIFY, FEW_ROWS, BARE),
                                                     (SEARCH, LABELS, HEAD), (SEARCH, FEW_ROWS, HEAD)])  # fmt: skip
def test_a_head_that_raises_map_and_lowers_accuracy_ships_for_search_alone(tmp_path, monkeypatch, use, kind, ships):
    """The bare backbone spreads labels but tells them; the head draws a label's test rows together at the wrong one."""
    task = LabelledTexts("t", ["k1", "k2", "k3", "k4"], ["a", "a", "b", "b"], ["a1", "a2", "b1", "b2"], [*"aabb"])
    known = {"k1": [1, 0.2, 0], "k2": [1, -0.2, 0], "k3": [-1, 0.2, 0], "k4": [-1, -0.2, 0]}
    bare = Points(**known, a1=[0.3, 1, 0], a2=[0.3, -1, 0], b1=[-0.3, 1, 0], b2=[-0.3, -1, 0])
    head = Points(**known, a1=[-1, 0.1, 0], a2=[-1, 0.1, 0], b1=[1, 0.1, 0], b2=[1, 0.1, 0])
    models = Models(Settings(), tmp_path, Ledger(tmp_path / "ledger"), kind, use)
    monkeypatch.setattr(Models, "dev", task)
    monkeypatch.setattr(Models, "picks", False)
    for system, encoder in ((BARE, bare), (HEAD, head)):
        monkeypatch.setattr("cse.adapt.models.open_model", lambda *_, encoder=encoder, **__: encoder)
        models._make(system, Settings(), models._place(system, Settings()), lambda: None)
    assert models.ladder.choice() == ships
    assert [one.accuracies for one in models.ladder] == ([[100.0], [0.0]] if use == CLASSIFY else [[], []])
    ladder = Ladder()
    for system, dev, accuracy in ((BARE, 70.0, 91.5), (HEAD, 75.0, 90.2), (PROMPTS, 72.0, 91.5)):
        ladder.add(system, system, dev, 1.0, accuracy)
    assert (ladder.choice(guarded=True), ladder.choice()) == (PROMPTS, HEAD), "it is right less often than the bare one"


def test_texts_are_classified_into_any_kind_of_table(cse, place, tiny_folders):
    texts = ["red cat", 'small dog, "sleeps"']
    write_lines(place / "names.txt", ["red cat", "small dog"])
    assert cse("adapt", "--labels", "names.txt", "--out", "out").code == 0
    write_lines(place / "texts.txt", texts)
    told = OnnxEncoder(place / "out/bundle", provider="cpu").classify(texts)
    for _ in range(2):  # an earlier output is replaced
        done = cse("encode", "out/bundle", "texts.txt", "--classify", "--out", "told.jsonl")
        assert "told.jsonl: 2 texts, 0 of them not known" in done.err
    rows = [json.loads(line) for line in (place / "told.jsonl").read_text().splitlines()]
    assert rows == [{"text": text, **one._asdict()} for text, one in zip(texts, told, strict=True)]
    given = [{"id": number, "body": text, "label": ["a", 1]} for number, text in enumerate(texts * 6)]
    write_objects(place / "given.jsonl", given)
    classify = ("encode", "out/bundle", "given.jsonl", "--column", "body", "--classify")
    for ending in ("csv", "parquet", "jsonl"):
        assert cse(*classify, "--out", f"kept.{ending}").code == 0
    rows = [json.loads(line) for line in (place / "kept.jsonl").read_text().splitlines()]
    assert rows == [
        {"id": row["id"], "body": row["body"], "given_label": ["a", 1], **one._asdict()}
        for row, one in zip(given, told * 6, strict=True)
    ]
    assert pq.read_table(place / "kept.parquet").column_names == [*rows[0]]
    with (place / "kept.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["body"] for row in csv.DictReader(stream)] == texts * 6
    shown = cse(*classify).out.splitlines()
    assert shown[0].split() == ["text", "label", "probability", "known"] and len(shown) == 1 + 10 + 1
    assert shown[1].startswith("red cat ") and shown[-1] == "12 texts: red cat 6, small dog 6, 0 not known"
    write_lines(place / "blank.csv", ["text,note", "red cat,a", ",b"])
    assert cse("encode", "out/bundle", "blank.csv", "--classify").out.endswith("2 texts: red cat 1, 1 not known\n")
    write_lines(place / "mine.csv", ["text,label"])
    for arguments, says in (
        ("out/bundle texts.txt --out mine.csv", "mine.csv"),
        ("out/bundle texts.txt --out told.npy", "--classify: --out ends in .csv, .jsonl, .parquet; without --raw"),
        (f"{tiny_folders['bert']} texts.txt --out x.csv", "no bundle, so it has no classifier; make one with"),
    ):
        assert says in cse("encode", "--classify", *arguments.split()).refused()
