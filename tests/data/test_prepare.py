"""Preparing end to end: sources, tasks, report, and the promise that a failure changes nothing."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from cse.data.prepare import prepare
from cse.data.sample import sample_pairs, sample_rows
from cse.data.tasks.kinds import kind_of
from cse.data.tasks.store import OWN, TEST, open_dev, open_tasks
from cse.errors import CseError
from cse.settings.data import DataSettings
from cse.stages import prepare as stage
from tests.cli.workspace import contents
from tests.data.conftest import dropped
from tests.data.tasks.files import write_beir, write_labelled
from tests.parts import refusal
from tests.rows import write_lines, write_table

SHARED = Path(__file__).parents[2].parent / "shared/data"
FILES = ["manifest.json", "report.json", "tasks.json", "train.arrow"]
NLI = "sent0,sent1,hard_neg\na cat sits,a pet sits,a cat runs\none,two,\na cat sits,a pet sits,a cat runs\nx,y,z\n"


def test_sample_needs_nothing_and_gives_everything(prepared, tmp_path):
    data = prepared(max_rows=200)
    assert (data.view, data.train.num_rows, data.report["notes"]) == ("triplets", 200, [])
    assert [(task.name, len(task)) for task in (open_dev(data), *open_tasks(data, TEST))] == [
        ("sample-dev", 500), ("sample", 1000),
    ]  # fmt: skip
    prepared(out="deeper/b", max_rows=200)
    assert contents(tmp_path / "out") == contents(tmp_path / "deeper/b"), "the same bytes wherever they are written"
    assert not any(str(tmp_path).encode() in content for content in contents(tmp_path / "out").values())


def test_own_files_are_cleaned_and_accounted_for(prepared, tmp_path):
    write_lines(tmp_path / "train/README.md", ["put data here"])
    (tmp_path / "train/nli.csv").write_text(NLI, encoding="utf-8")
    scored = write_lines(tmp_path / "own.csv", ["sentence1,sentence2,score", "X!,b,1", "c,d,2"])
    data = prepared("train", evaluation_path=str(scored))
    report = data.report
    assert data.train.to_pylist() == [{"sent0": "a cat sits", "sent1": "a pet sits", "hard_neg": "a cat runs"}]
    assert dropped(report["train"]) == {
        "missing_hard_negative": (1, "nli.csv:3"), "duplicate": (1, "nli.csv:4"),
        "evaluation_overlap": (1, "nli.csv:5"),
    }  # fmt: skip
    assert report["evaluation"].items() >= {"from": "own.csv", "tasks": {"own": 2}}.items()
    assert report["evaluation"]["missing"][0] == "STS-B splits (no SentEval folder)"
    assert report["dev"] == {"from": None, "task": "0 pairs"}
    assert "no dev pairs" in report["notes"][0]
    assert "a single row: the negatives of a contrastive loss are other rows" in report["notes"][1]
    assert open_dev(data) is None


def test_what_is_not_at_a_default_path_was_not_asked_for(prepared, tmp_path):
    lines = write_lines(tmp_path / "mine.txt", ["a cat", "a dog"])
    report = prepared(lines, view="sentences").report  # no clone: nothing in data/raw
    assert (report["train"]["kept"], report["dev"]["task"], report["evaluation"]["tasks"]) == (2, "0 pairs", {})
    assert any("no evaluation tasks" in note for note in report["notes"])
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/dev").symlink_to("nowhere")
    with pytest.raises(CseError, match=r"data/raw/dev: a link to nowhere, which does not exist; .*data.dev_path"):
        prepared(lines, view="sentences")


LABELLED = {"view": "categories"}
# what is said of which rows and settings
REFUSED = [
    ("own.csv: 3 pairs with the score 3; Spearman needs at least 2", NLI, {"evaluation_path": "own.csv"}),
    ("own.csv: 3 pairs with the score 3; Spearman needs at least 2", NLI, {"dev_path": "own.csv"}),
    *((f"elsewhere: no such file or folder; .*data.{key}", NLI, {key: "elsewhere"})
      for key in ("dev_path", "evaluation_path", "cxc_path", "task_path")),
    ("data/raw/train: no such file or folder; put data there", None, {"source": "files"}),
    ("train.csv:3: 2 fields, but the header has 3", "sent0,sent1,hard_neg\na,b,c\nd,e\n", {}),
    ("all 1 rows were dropped", "sent0,sent1,hard_neg\na,b,\n", {}),
    (r"^train.csv: one label only \(x\); pairs within labels need at", "text,label\na b,x\nc d,x\n", LABELLED),
    (r"^train.csv: all 2 rows were dropped: 2 alone_in_label \(first", "text,label\na b,x\nc d,y\n", LABELLED),
    *((said, NLI, {"more": [{"name": "nli", "view": "pairs", "path": path}]}) for said, path in (
        (r"^none.csv: no such file or folder.* \(or change data.more.nli.path\)$", "none.csv"),
        (r"^words.csv: .*data\.more\.nli\.columns", "words.csv"),
        (r"^data.more.nli: blank.csv: all 1 rows were dropped: 1 blank", "blank.csv"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("said", "rows", "settings"), REFUSED)
def test_a_failure_is_one_line_and_leaves_the_old_prepared_data_untouched(prepared, tmp_path, said, rows, settings):
    write_lines(tmp_path / "own.csv", ["sentence1,sentence2,score", "a,b,3", "c,d,3.0", "e,f,3"])
    write_lines(tmp_path / "blank.csv", ["sent0,sent1", " ,"])
    write_lines(tmp_path / "words.csv", ["text", "one"])
    prepared(NLI)
    before = contents(tmp_path / "out")
    assert re.search(said, refusal(prepared, rows, **settings))
    assert contents(tmp_path / "out") == before
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is not here")
def test_published_data(tmp_path):
    raw = {"source": "files", "dev_path": str(tmp_path / "dev"), "evaluation_path": str(SHARED / "senteval")}
    (tmp_path / "dev").mkdir()
    nli = DataSettings(**raw, train_path=str(SHARED / "nli/nli_for_simcse.csv"))
    report = prepare(nli, tmp_path / "nli")
    assert (report["train"]["read"], report["train"]["kept"]) == (41_626, 41_387)
    assert [(reason, count) for reason, (count, _) in dropped(report["train"]).items()] == [("evaluation_overlap", 239)]
    assert sum(report["evaluation"]["tasks"].values()) == 18_850
    assert report["dev"] == {"from": "STS-B dev", "task": "1,500 pairs"}
    report = prepare(DataSettings(**raw, view="sentences", train_path=str(SHARED / "wiki")), tmp_path / "wiki")
    assert (report["train"]["read"], report["train"]["kept"]) == (228_566, 228_566)


ROWS_HASH = "19d1a820a3a0b117ea72b302b97a508d1d786f9f347b1c07566e36be610810a1"
PAIRS_HASH = "325af39e75ada22fcc2770829469215fae7181f2af224fa888a82eeb0ca598ec"


def test_recorded_rows_notice_any_change_and_no_pair_both_selects_and_measures():
    rows, pairs = list(sample_rows("triplets")), sample_pairs("test")
    text = "\n".join("\t".join(row) for row in rows)
    scored = "\n".join(f"{a}\t{b}\t{s}" for a, b, s in zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))
    assert (len(rows), sha256(text.encode()).hexdigest()) == (3000, ROWS_HASH)
    assert (len(pairs), sha256(scored.encode()).hexdigest()) == (1000, PAIRS_HASH)
    dev, test = ({*zip(part.sentence1, part.sentence2, strict=True)} for part in map(sample_pairs, ("dev", "test")))
    assert (len(dev), len(test), dev & test) == (500, 1000, set())


# ---- labels ---------------------------------------------------------------------------------------------------------

SNLI = (
    "gold_label,sentence1,sentence2\nentailment,a,b\n-,a,c\nContradiction,a,d\nneutral,a,e\nneutral,a,e\nneutral,a,d\n"
)


def test_rows_without_a_gold_label_and_repeated_rows_are_dropped_and_counted(prepared):
    data = prepared(SNLI, view="labelled")
    assert [tuple(row.values()) for row in data.train.to_pylist()] == [
        ("a", "b", "entailment"), ("a", "d", "contradiction"), ("a", "e", "neutral"), ("a", "d", "neutral"),
    ]  # fmt: skip
    assert dropped(data.report["train"]) == {"no_label": (1, "train.csv:3"), "duplicate": (1, "train.csv:6")}
    assert data.report["train"]["distinct_sentences"] == 4, "labels are no sentences"


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


def test_every_text_is_an_anchor_and_a_positive_of_its_label(prepared):
    data = prepared(CARDS, view="categories")
    report = data.report
    assert (data.view, data.train.column_names) == ("pairs", ["sent0", "sent1", "group"])
    first, second, groups = (data.train[name].to_pylist() for name in ("sent0", "sent1", "group"))
    assert [*zip(first, groups, strict=True)] == [
        ("Where is my card?", "arrival"), ("My card is lost.", "lost"), ("Has my card been sent?", "arrival"),
        ("When does my card come?", "arrival"), ("I cannot find my card.", "lost"), ("My card is lost.", "arrival"),
    ]  # fmt: skip
    assert sorted(zip(second, groups, strict=True)) == sorted(zip(first, groups, strict=True))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert (report["view"], report["made_from"], report["train"]["kept"]) == ("pairs", "categories", 6)
    assert dropped(report["train"]) == {
        "alone_in_label": (1, "train.csv:6"), "duplicate": (1, "train.csv:8"), "no_label": (1, "train.csv:10"),
    }  # fmt: skip


@pytest.mark.parametrize(("lost", "more"), [("lost_card", {"arrival", "lost card", "close"}), ("arrival_2", set())])
def test_names_of_labels_are_texts_of_theirs_unless_they_say_nothing(prepared, lost, more):
    data = prepared(CARDS.replace(",lost", f",{lost}"), view="categories", label_name_rows=True)
    texts = data.labels()
    added = {*texts} - {*prepared(CARDS, view="categories").labels()}
    assert added - {"Close my account."} == more, "that one is alone without its label's name"
    assert all(texts[name] == [{"lost card": "lost_card"}.get(name, name)] for name in more)


# ---- the user's own tasks -------------------------------------------------------------------------------------------

# a query, a document, a test row, a reference row
TEXTS = ["birds that wait", "A pump moves water.", "card lost", "where is my card", "a sentence of its own", "another"]


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / "train.csv", ["text", *TEXTS])


def test_tasks_are_stored_counted_and_held_out_and_any_of_them_selects_checkpoints(prepared, texts, tmp_path):
    write_beir(tmp_path / "task/birds")
    write_labelled(tmp_path / "task/bank")
    given = {"view": "sentences", "task_path": "task"}
    data = prepared(texts, **given)
    report, said = data.report, stage.summary(data.report)
    assert [task.name for task in open_tasks(data, OWN)] == ["bank", "birds"]
    assert data.train["sent0"].to_pylist() == [TEXTS[1], *TEXTS[3:]], "documents and reference rows are training text"
    assert dropped(report["train"]) == {"evaluation_overlap": (2, "train.csv:2")}
    assert report["tasks"]["birds"] == "retrieval: 2 queries, 3 documents, 3 judgements in qrels/test.tsv"
    assert "task        bank: labelled texts: 2 labels, 4 reference and 3 test rows" in said
    assert prepared(texts, **given, drop=["duplicates"]).report["train"]["evaluation_overlap_kept"] == 2

    data = prepared(texts, view="sentences", dev_path="task/bank")
    assert open_dev(data).test == ["card lost", "rate today", "rate of exchange"]
    assert "dev         labelled texts: 2 labels, 4 reference and 3 test rows from bank" in stage.summary(data.report)
    assert data.report["train"]["dropped"]["evaluation_overlap"]["count"] == 1, "the test row, not the reference row"


def test_scores_of_a_dev_file_count_whatever_labels_stand_beside_them(prepared, texts, tmp_path):
    path = write_lines(tmp_path / "dev/own.csv", ["sentence1,sentence2,score,label", "a,b,1,1", "c,d,2,0"])
    assert kind_of(open_dev(prepared(texts, view="sentences", dev_path=str(path)))) == "scored pairs"


# ---- further sources ------------------------------------------------------------------------------------------------


def test_each_source_is_cleaned_and_reported_on_its_own(prepared, tmp_path):
    write_table(tmp_path / "dev.csv", ("sentence1", "sentence2", "score"), [("A dev text.", "b", 1), ("c", "d", 2)])
    main = write_lines(tmp_path / "main.csv", ["text", "one", "two", "three", "a dev text"])
    rows = [("one", "uno", "dos"), ("one", "uno", "dos"), ("x", "A DEV TEXT", "y"), ("x", "", "y")]
    nli = write_table(tmp_path / "data/raw/more/nli.csv", ("sent0", "sent1", "hard_neg"), rows)
    faq = write_table(tmp_path / "faq.csv", ("q", "a"), [("one", "two")])
    more = [
        {"name": "nli", "path": str(nli), "view": "triplets"},
        {"name": "faq", "path": str(faq), "view": "pairs", "columns": ["q", "a"]},
    ]
    data = prepared(main, view="sentences", dev_path="dev.csv", more=more)
    report = data.report
    assert report["train"]["kept"] == 3, "its fourth row is a dev text"
    assert dropped(report["more"]["nli"]).keys() == {"duplicate", "evaluation_overlap", "missing_sentence"}
    assert data.sources == ["faq", "nli"]
    assert data.of("nli").train.to_pydict() == {"sent0": ["one"], "sent1": ["uno"], "hard_neg": ["dos"]}
    assert data.of("faq").train.to_pydict() == {"sent0": ["one"], "sent1": ["two"]}, "a text of the main source may be"
    assert data.train["sent0"].to_pylist() == ["one", "two", "three"]
    assert f"`dvc repro` does not notice changes of {faq}; it watches data/raw/more" in stage.summary(report)


def test_held_out_texts_are_in_no_source(prepared, tmp_path):
    pairs = [(f"question {number}", f"answer {number}") for number in range(20)]
    main = write_table(tmp_path / "pairs.csv", ("sent0", "sent1"), pairs)
    copy = [(answer.upper(), question + "!") for question, answer in pairs]
    other = write_table(tmp_path / "copy.csv", ("sent0", "sent1"), [*copy, ("new", "newer")])
    more = [{"name": "copy", "path": str(other), "view": "pairs"}]
    data = prepared(main, view="pairs", more=more, hold_out=0.2)
    (measured,) = open_tasks(data, OWN)
    held = {*open_dev(data).queries, *measured.queries}
    assert len(held) == 4 + 4
    assert data.report["more"]["copy"]["dropped"]["held_out_overlap"]["count"] == 8
    assert data.report["more"]["copy"]["kept"] == 13
    assert held.isdisjoint(text.rstrip("!") for text in data.of("copy").train["sent1"].to_pylist())
