"""Transfer tasks as SentEval lays them out, on made-up files with the published numbers of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from cse.data.suite import read_transfer
from cse.data.tasks.kinds import TRANSFER_TASKS
from cse.errors import CseError

SHARED = Path(__file__).parents[3] / "shared/data/senteval"


def write(root, file, lines, encoding="utf-8"):
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


@pytest.fixture
def folder(tmp_path):
    """CR and TREC; CR has blank lines, TREC a byte that is not UTF-8."""
    write(tmp_path, "CR/custrev.pos", ["a  good  phone"] * 2404 + [""] * 3)
    write(tmp_path, "CR/custrev.neg", ["bad"] * 1367 + [""])
    kinds = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    write(tmp_path, "TREC/train_5500.label", [f"{kinds[i % 6]}:some café {i} ?" for i in range(5452)], "latin-1")
    write(tmp_path, "TREC/TREC_10.label", [f"{kinds[i % 6]}:other who {i} ?" for i in range(500)])
    return tmp_path


def test_a_partial_folder_gives_what_is_there_and_names_the_rest(folder):
    tasks, missing = read_transfer(folder)
    assert [task.name for task in tasks] == ["CR", "TREC"]
    assert missing == [
        "MR (MR/rt-polarity.pos)", "SUBJ (SUBJ/subj.objective)", "MPQA (MPQA/mpqa.pos)",
        "SST-2 (SST/binary/sentiment-train)", "MRPC (MRPC/msr_paraphrase_train.txt)",
    ]  # fmt: skip
    cr, trec = tasks
    assert len(cr.train) == 3775
    assert cr.train.texts[:5] == ["", "", "", "", "bad"], "blank lines count; sorted by words, then class"
    assert cr.train.label[:4].tolist() == [0, 1, 1, 1]
    assert cr.train.texts[-1] == "a good phone"
    assert "café 1 ?" in trec.train.texts
    assert (len(trec.train), len(trec.test), trec.dev) == (5452, 500, None)
    assert set(trec.train.label) == set(range(6))


def test_pairs_and_given_splits(tmp_path):
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for file, count in (("train", 4076), ("test", 1725)):
        lines = [f"{i % 2}\t1\t2\tfirst {i}\tsecond {i}" for i in range(count)]
        write(tmp_path, f"MRPC/msr_paraphrase_{file}.txt", [head, *lines])
    for file, count in (("train", 67349), ("dev", 872), ("test", 1821)):
        write(tmp_path, f"SST/binary/sentiment-{file}", [f"words {i}\t{i % 2}" for i in range(count)])
    sst, mrpc = read_transfer(tmp_path)[0]
    assert [len(part) for part in sst.parts] == [67349, 872, 1821]
    assert [len(part) for part in mrpc.parts] == [4076, 1725]
    assert all(a.replace("first", "second") == b for a, b in zip(mrpc.train.texts, mrpc.train.second, strict=True))


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        (
            "CR/custrev.pos",
            ["good"] * 2406,
            r"custrev\.pos: 2,406 lines, expected 2,407 as published; copy the file again",
        ),
        ("TREC/TREC_10.label", ["what is this"] * 500, r"TREC_10\.label:1: expected CLASS:detail and a question"),
        ("TREC/TREC_10.label", ["NUM:date when ?"] * 500, r"TREC: class 0 of 6 has no rows in a part of the task"),
    ],
)
def test_a_file_that_is_not_as_published(folder, file, lines, message):
    write(folder, file, lines)
    with pytest.raises(CseError, match=message):
        read_transfer(folder)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared evaluation data are not here")
def test_real_folder_is_whole():
    tasks, missing = read_transfer(SHARED)
    assert (tuple(task.name for task in tasks), missing) == (TRANSFER_TASKS, [])
    assert {task.name: [len(part) for part in task.parts] for task in tasks} == {
        "MR": [10662], "CR": [3775], "SUBJ": [10000], "MPQA": [10606], "SST-2": [67349, 872, 1821],
        "TREC": [5452, 500], "MRPC": [4076, 1725],
    }  # fmt: skip
    blank = {task.name: task.train.texts.count("") for task in tasks}
    assert (blank["CR"], blank["MPQA"]) == (4, 3)
