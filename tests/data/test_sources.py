"""Further sources: cleaned like the main one, reported one by one, free of everything that is held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.errors import CseError
from cse.settings.data import DataSettings
from cse.stages.prepare import counts, summary
from tests.rows import write_table


def write(path: Path, rows: list[tuple]) -> str:
    return str(write_table(path, *rows[:1], rows[1:]))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Prepare sentences, with these further sources, and return the report."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "dev.csv", [("sentence1", "sentence2", "score"), ("A dev text.", "b", 1), ("c", "d", 2)])
    write(tmp_path / "main.csv", [("text",), ("one",), ("two",), ("three",), ("a dev text",)])

    def call(*more, **settings):
        given = {"source": "files", "view": "sentences", "train_path": "main.csv", "dev_path": "dev.csv"}
        return prepare(DataSettings(**(given | settings), more=list(more)), tmp_path / "out", progress=False)

    return call


def test_each_source_is_cleaned_and_reported_on_its_own(made, tmp_path):
    rows = [("sent0", "sent1", "hard_neg"), ("one", "uno", "dos"), ("one", "uno", "dos"), ("x", "A DEV TEXT", "y")]
    nli = {
        "name": "nli",
        "path": write(tmp_path / "data/raw/more/nli.csv", [*rows, ("x", "", "y")]),
        "view": "triplets",
    }
    faq = {"name": "faq", "path": write(tmp_path / "faq.csv", [("q", "a"), ("one", "two")]), "view": "pairs"}
    report = made(nli, faq | {"columns": ["q", "a"]})
    assert report["train"]["kept"] == 3, "its fourth row is a dev text"
    assert {name: (part["view"], part["read"], part["kept"]) for name, part in report["more"].items()} == {
        "nli": ("triplets", 4, 1),
        "faq": ("pairs", 1, 1),
    }
    dropped = {reason: entry for reason, entry in report["more"]["nli"]["dropped"].items() if entry["count"]}
    assert {reason: (entry["count"], entry["first"]) for reason, entry in dropped.items()} == {
        "duplicate": (1, "nli.csv:3"),
        "evaluation_overlap": (1, "nli.csv:4"),
        "missing_sentence": (1, "nli.csv:5"),
    }
    data = PreparedData(tmp_path / "out")
    assert data.sources == ["faq", "nli"]
    assert data.of("nli").train.to_pydict() == {"sent0": ["one"], "sent1": ["uno"], "hard_neg": ["dos"]}
    assert data.of("faq").train.to_pydict() == {"sent0": ["one"], "sent1": ["two"]}, (
        "it may repeat a text of the main source"
    )
    assert data.train["sent0"].to_pylist() == ["one", "two", "three"]
    assert json.loads((tmp_path / "out/report.json").read_text()) == report
    lines = summary(report).splitlines()
    assert "nli         1 of 4 rows kept from nli.csv (view triplets, 3 distinct sentences)" in lines
    assert "faq         1 of 1 rows kept from faq.csv (view pairs, 2 distinct sentences)" in lines
    assert [line for line in lines if "does not notice" in line] == [
        f"note        data.more.faq: `dvc repro` does not notice changes of {faq['path']}; it watches data/raw/more"
    ]
    assert counts(report)["rows_nli"] == counts(report)["rows_faq"] == 1


def test_held_out_texts_are_in_no_source(made, tmp_path):
    pairs = [(f"question {number}", f"answer {number}") for number in range(20)]
    main = write(tmp_path / "pairs.csv", [("sent0", "sent1"), *pairs])
    copy = [(answer.upper(), question + "!") for question, answer in pairs]
    other = write(tmp_path / "copy.csv", [("sent0", "sent1"), *copy, ("new", "newer")])
    more = {"name": "copy", "path": other, "view": "pairs"}
    (tmp_path / "data/raw/dev").mkdir(parents=True)
    report = made(more, view="pairs", train_path=main, dev_path="data/raw/dev", hold_out=0.2)
    data = PreparedData(tmp_path / "out")
    (measured,) = open_tasks(data, OWN)
    held = {*open_dev(data).queries, *measured.queries}
    assert len(held) == 4 + 4
    assert report["more"]["copy"]["dropped"]["held_out_overlap"]["count"] == 8
    assert report["more"]["copy"]["kept"] == 13
    assert held.isdisjoint(text.rstrip("!") for text in data.of("copy").train["sent1"].to_pylist())


def test_labels_and_documents_beside_the_main_source(made, tmp_path):
    labels = [("text", "category"), *((f"{label} {number}", label) for label in "ab" for number in range(3))]
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/one.md").write_text("# Title\n\nFirst sentence here. Second sentence there.\n", encoding="utf-8")
    report = made(
        {"name": "intents", "path": write(tmp_path / "intents.csv", labels), "view": "categories", "max_rows": 4},
        {"name": "pages", "path": "pages", "view": "documents", "pairs": ["title_body"]},
    )
    assert {name: (part["view"], part["made_from"], part["kept"]) for name, part in report["more"].items()} == {
        "intents": ("pairs", "categories", 4),
        "pages": ("pairs", "documents", 1),
    }
    data = PreparedData(tmp_path / "out")
    assert data.of("pages").train.to_pylist()[0] == {
        "sent0": "Title", "sent1": "First sentence here. Second sentence there.", "group": "one.md",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"path": "none.csv"}, r"^none.csv: no such file or folder.* \(or change data.more.nli.path\)$"),
        ({"path": "main.csv"}, r"^main.csv: .*data\.more\.nli\.columns"),
        ({"path": "dev.csv", "columns": ["sentence1", "b"]}, r"^dev.csv: no column 'b' \(data.more.nli.columns\)"),
        ({"path": "blank.csv"}, r"^data.more.nli: blank.csv: all 1 rows were dropped: 1 blank"),
    ],
)
def test_mistakes_name_the_source(made, tmp_path, more, problem):
    write(tmp_path / "blank.csv", [("sent0", "sent1"), (" ", "")])
    with pytest.raises(CseError, match=problem):
        made({"name": "nli", "view": "pairs"} | more)
    assert not (tmp_path / "out").exists()
