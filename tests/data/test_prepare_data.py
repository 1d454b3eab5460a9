"""Preparing end to end: sources, settings, report, and the promise that a failure changes nothing."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from cse.data.prepare import prepare
from cse.data.sample import sample_pairs, sample_rows
from cse.data.store import PreparedData
from cse.data.tasks.store import TEST, open_dev, open_tasks
from cse.errors import CseError
from cse.settings.data import DataSettings
from cse.settings.load import Settings
from cse.stages import prepare as stage

SHARED = Path(__file__).parents[2].parent / "shared/data"
FILES = ["manifest.json", "report.json", "tasks.arrow", "train.arrow"]


@pytest.fixture
def raw(tmp_path):
    """Folders as the project has them, and settings that point there."""
    for name in ("train", "dev", "evaluation", "cxc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("put data here", encoding="utf-8")
    text = "sent0,sent1,hard_neg\na cat sits,a pet sits,a cat runs\none,two,\na cat sits,a pet sits,a cat runs\nx,y,z\n"
    (tmp_path / "train/nli.csv").write_text(text, encoding="utf-8")
    (tmp_path / "evaluation/own.csv").write_text("sentence1,sentence2,score\nX!,b,1\nc,d,2\n", encoding="utf-8")
    return tmp_path


def settings(raw, **how):
    paths = {f"{name}_path": str(raw / name) for name in ("train", "dev", "evaluation", "cxc")}
    return DataSettings(source="files", **{**paths, **how})


def test_sample_needs_nothing_and_gives_everything(tmp_path):
    report = prepare(DataSettings(max_rows=200), tmp_path / "out")
    data = PreparedData(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert data.view == "triplets"
    assert data.train.num_rows == report["train"]["kept"] == 200
    assert (open_dev(data).name, len(open_dev(data))) == ("sample-dev", 500)
    assert [(task.name, len(task)) for task in open_tasks(data, TEST)] == [("sample", 1000)]
    assert data.report == report
    assert report["notes"] == []


def test_same_input_same_bytes_wherever_it_is_written(tmp_path):
    for name in ("a", "deeper/b"):
        prepare(DataSettings(max_rows=300, seed=5), tmp_path / name)
    for file in FILES:
        data = (tmp_path / "a" / file).read_bytes()
        assert data == (tmp_path / "deeper/b" / file).read_bytes()
        assert str(tmp_path).encode() not in data


def test_own_files_are_cleaned_and_accounted_for(raw):
    report = prepare(settings(raw), raw / "out")
    assert PreparedData(raw / "out").train.to_pylist() == [
        {"sent0": "a cat sits", "sent1": "a pet sits", "hard_neg": "a cat runs"}
    ]
    assert (report["train"]["read"], report["train"]["kept"]) == (4, 1)
    assert report["train"]["dropped"]["missing_hard_negative"] == {"count": 1, "first": "nli.csv:3"}
    assert report["train"]["dropped"]["duplicate"] == {"count": 1, "first": "nli.csv:4"}
    assert report["train"]["dropped"]["evaluation_overlap"] == {"count": 1, "first": "nli.csv:5"}
    assert report["evaluation"].items() >= {"from": "own.csv", "pairs": 2, "tasks": {"own": 2}, "missing": []}.items()
    assert report["evaluation"]["suite_missing"][0] == "STS-B splits (no SentEval folder)"
    assert report["dev"] == {"from": None, "pairs": 0}
    assert "no dev pairs" in report["notes"][0]
    assert "a single row: the negatives of a contrastive loss are other rows" in report["notes"][1]
    assert open_dev(PreparedData(raw / "out")) is None


@pytest.mark.parametrize(("folder", "pairs"), [("dev", "a,b,3"), ("evaluation", "a,b,3\nc,d,3.0\ne,f,3")])
def test_pairs_that_have_no_rank_correlation_are_refused_before_training(raw, folder, pairs):
    (raw / folder / "own.csv").write_text(f"sentence1,sentence2,score\n{pairs}\n", encoding="utf-8")
    count = pairs.count("\n") + 1
    said = rf"{folder}/own.csv: {count} pairs? with the score 3; Spearman needs at least 2"
    with pytest.raises(CseError, match=said):
        prepare(settings(raw), raw / "out")
    assert not (raw / "out").exists()


def test_what_is_not_at_a_default_path_was_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # no clone: none of data/raw/dev, data/raw/evaluation, data/raw/cxc
    Path("mine.txt").write_text("a cat\na dog\n", encoding="utf-8")
    mine = DataSettings(source="files", view="sentences", train_path="mine.txt")
    report = prepare(mine, tmp_path / "out")
    assert (report["train"]["kept"], report["dev"]["pairs"], report["evaluation"]["pairs"]) == (2, 0, 0)
    assert any("no evaluation tasks" in note for note in report["notes"])
    assert open_tasks(PreparedData(tmp_path / "out"), TEST) == []
    for key in ("dev_path", "evaluation_path", "cxc_path"):
        with pytest.raises(CseError, match=rf"elsewhere: no such file or folder; .*data.{key}"):
            prepare(mine.model_copy(update={key: "elsewhere"}), tmp_path / "out")
    Path("data/raw").mkdir(parents=True)
    Path("data/raw/dev").symlink_to("nowhere")
    with pytest.raises(CseError, match=r"data/raw/dev: a link to nowhere, which does not exist; .*data.dev_path"):
        prepare(mine, tmp_path / "out")
    Path("data/raw/dev").unlink()
    with pytest.raises(CseError, match=r"data/raw/train: no such file or folder; put data there"):
        prepare(DataSettings(source="files"), tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train/nli.csv", b"sent0,sent1,hard_neg\na,b,c\nd,e,\xff\n", "nli.csv:3: byte 0xff"),
        ("train/nli.csv", b"sent0,sent1,hard_neg\na,b,\n", "all 1 rows were dropped"),
        ("train/nli.csv", b"", "no rows; add rows"),
        ("evaluation/own.csv", b"sentence1,sentence2,score\na,b,nan\n", "own.csv:2: score 'nan'"),
    ],
)
def test_a_failure_leaves_the_old_prepared_data_untouched(raw, file, text, message):
    prepare(settings(raw), raw / "out")
    before = {name: (raw / "out" / name).read_bytes() for name in FILES}
    (raw / file).write_bytes(text)
    with pytest.raises(CseError, match=message):
        prepare(settings(raw), raw / "out")
    assert {name: (raw / "out" / name).read_bytes() for name in FILES} == before
    assert not [path.name for path in raw.iterdir() if path.name.startswith(".")]


def test_the_stage_writes_flat_metrics_and_a_summary(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stage.prepare_stage(Settings(data=DataSettings(max_rows=50)))
    metrics = json.loads(Path("data/metrics/prepare.json").read_text(encoding="utf-8"))
    assert PreparedData("data/prepared").train.num_rows == metrics["rows"] == 50
    assert metrics["evaluation_pairs"] == 1000
    assert metrics["dropped_duplicate"] == 0
    assert all(isinstance(value, int) for value in metrics.values())
    shown = capsys.readouterr()
    said = r"50 of 3,000 rows kept from sample \(view triplets.*, drawn from [\d,]+ by data.seed\)"
    assert re.search(said, shown.out)
    assert shown.err == ""


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is not here")
def test_published_data(tmp_path):
    raw = {"source": "files", "dev_path": str(tmp_path / "dev"), "evaluation_path": str(SHARED / "senteval")}
    (tmp_path / "dev").mkdir()
    nli = DataSettings(**raw, train_path=str(SHARED / "nli/nli_for_simcse.csv"))
    report = prepare(nli, tmp_path / "nli")
    dropped = {reason: entry["count"] for reason, entry in report["train"]["dropped"].items() if entry["count"]}
    assert (report["train"]["read"], report["train"]["kept"], dropped) == (41_626, 41_387, {"evaluation_overlap": 239})
    assert report["evaluation"]["pairs"] == 18_850
    assert report["dev"] == {"from": "STS-B dev", "pairs": 1500}
    without = prepare(nli.model_copy(update={"dev": "own", "max_rows": 9}), tmp_path / "without")
    assert without["dev"] == {"from": None, "pairs": 0}
    report = prepare(DataSettings(**raw, view="sentences", train_path=str(SHARED / "wiki")), tmp_path / "wiki")
    assert (report["train"]["read"], report["train"]["kept"]) == (228_566, 228_566)


# ---- the sample -----------------------------------------------------------------------------------------------------

FIRST_ROW = (
    "A weary secretary is taking on two salespeople at the headquarters early in the morning.",
    "At daybreak, an assistant is hiring two salespeople at the head office.",
    "A tired assistant is not taking on two salespeople at the headquarters early in the morning.",
)
ROWS_HASH = "19d1a820a3a0b117ea72b302b97a508d1d786f9f347b1c07566e36be610810a1"
PAIRS_HASH = "325af39e75ada22fcc2770829469215fae7181f2af224fa888a82eeb0ca598ec"


def test_recorded_rows_notice_any_change_and_no_pair_both_selects_and_measures():
    rows, pairs = list(sample_rows("triplets")), sample_pairs("test")
    text = "\n".join("\t".join(row) for row in rows)
    scored = "\n".join(f"{a}\t{b}\t{s}" for a, b, s in zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))
    assert rows[0] == FIRST_ROW
    assert (len(rows), sha256(text.encode()).hexdigest()) == (3000, ROWS_HASH)
    assert (len(pairs), sha256(scored.encode()).hexdigest()) == (1000, PAIRS_HASH)
    dev, test = ({*zip(part.sentence1, part.sentence2, strict=True)} for part in map(sample_pairs, ("dev", "test")))
    assert (len(dev), len(test), dev & test) == (500, 1000, set())
