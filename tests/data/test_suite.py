"""The sets of the papers: counts, text as SentEval reads it, what is missing or changed, and the way through Arrow."""

import json
from pathlib import Path

import numpy as np
import pytest

from cse.data.store import REPORT_FILE, PreparedData
from cse.data.suite import (
    NO_CAPTIONS,
    SICK_TEST,
    STSB,
    YEARS,
    SuiteData,
    open_suite,
    read_stsb,
    read_suite,
    read_transfer,
)
from cse.data.tasks.kinds import (
    TRANSFER_TASKS,
    BinaryPairs,
    CaptionPairs,
    Labelled,
    LabelledTexts,
    Retrieval,
    Splits,
    TransferTask,
    Triplets,
)
from cse.data.tasks.store import write_tasks
from tests.evaluation.test_sts import make_task
from tests.parts import refusal
from tests.rows import write_lines

SHARED = Path(__file__).parents[3] / "shared/data"
TOTALS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927}


def make(root):
    """Write a SentEval folder of made-up sentences with the published numbers of pairs."""
    for year, subsets in YEARS.items():
        unscored = [("not\tscored", "")] if year in ("STS15", "STS16") else []
        for subset, pairs in subsets.items():
            scored = ((f'{subset} "one  {n}\tother\u00a0two {n} .', f"{n % 6}") for n in range(pairs))
            lines, gold = zip(*(row for one in scored for row in (one, *unscored)), strict=True)
            write_lines(root / f"STS/{year}-en-test/STS.input.{subset}.txt", lines)
            write_lines(root / f"STS/{year}-en-test/STS.gs.{subset}.txt", gold)
    for split, pairs in STSB.items():
        rows = [f'genre\tfile\tyear\t{n}\t2.5\ta "{n}\tb\u2028c\textra' for n in range(pairs)]
        write_lines(root / f"STS/STSBenchmark/sts-{split}.csv", rows)
    rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    rows += [f"{n}\tA cat\tA dog\t3.3\tNEUTRAL" for n in range(SICK_TEST)]
    write_lines(root / "SICK/SICK_test_annotated.txt", rows)


def test_a_whole_folder_gives_seven_tasks_and_dev_and_a_partial_one_says_what_is_missing(prepared, tmp_path):
    make(tmp_path / "downstream")
    found = read_suite(tmp_path / "downstream")
    assert {task.name: len(task) for task in found.sts} == TOTALS
    assert (len(found.dev), found.dev.name) == (1500, "STS-B dev")
    assert found.missing[0].startswith("MR (") and found.missing[-1] == NO_CAPTIONS
    sts12 = found.sts[0]
    assert (sts12.sentence1[1], sts12.sentence2[1]) == ('MSRpar "one 1', "other two 1 .")
    assert list(dict.fromkeys(sts12.subset)) == list(YEARS["STS12"])
    assert found.sts[5].sentence2[0] == "b c"
    assert len(read_suite(tmp_path).sts) == 7, "the folder around it will do"
    gone = ["STS/STS13-en-test/STS.gs.FNWN.txt", "SICK/SICK_test_annotated.txt", "STS/STSBenchmark/sts-dev.csv"]
    for name in gone:
        (tmp_path / "downstream" / name).unlink()
    found = read_suite(tmp_path)
    assert ([task.name for task in found.sts], found.dev) == (["STS12", "STS14", "STS15", "STS16", "STS-B"], None)
    assert found.missing[:3] == [f"STS13 ({gone[0]})", f"SICK-R ({gone[1]})", f"STS-B dev ({gone[2]})"]
    report = prepared("sent0,sent1\na,b\nc,d\n", view="pairs", evaluation_path=str(tmp_path)).report
    assert f"SentEval folder without {', '.join(found.missing[:3])}" in report["notes"]


def test_changed_files_and_none_are_refused(tmp_path):
    assert "expected STS/STS12-en-test" in refusal(read_suite, tmp_path)
    make(tmp_path)
    gold = tmp_path / "STS/STS12-en-test/STS.gs.MSRpar.txt"
    rest = gold.read_text(encoding="utf-8").split("\n")[1:]
    for lines, said in (
        (["", *rest], "STS.gs.MSRpar.txt: 749 scored pairs, expected 750 as published"),
        (["nan", *rest], "MSRpar.txt:1: score 'nan' is not a number from 0 to 5"),
        (rest, "749 lines, but STS.input.MSRpar.txt has 750"),
    ):
        gold.write_text("\n".join(lines), encoding="utf-8")
        assert said in refusal(read_suite, tmp_path)
    write_lines(tmp_path / "STS/STSBenchmark/sts-dev.csv", ["a\tb\tc"])
    assert "sts-dev.csv:1: 3 fields separated by tabs, expected 7" in refusal(read_stsb, tmp_path, "dev")


def test_a_partial_folder_gives_what_is_there_and_names_the_rest(tmp_path):
    """CR and TREC; CR has blank lines, TREC a byte that is not UTF-8."""
    write_lines(tmp_path / "CR/custrev.pos", ["a  good  phone"] * 2404 + [""] * 3)
    write_lines(tmp_path / "CR/custrev.neg", ["bad"] * 1367 + [""])
    kinds = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    train = write_lines(tmp_path / "TREC/train_5500.label", [f"{kinds[i % 6]}:some café {i} ?" for i in range(5452)])
    train.write_bytes(train.read_text(encoding="utf-8").encode("latin-1"))
    write_lines(tmp_path / "TREC/TREC_10.label", [f"{kinds[i % 6]}:other who {i} ?" for i in range(500)])
    tasks, missing = read_transfer(tmp_path)
    assert [task.name for task in tasks] == ["CR", "TREC"]
    assert [name.split()[0] for name in missing] == ["MR", "SUBJ", "MPQA", "SST-2", "MRPC"]
    assert missing[0] == "MR (MR/rt-polarity.pos)"
    cr, trec = tasks
    assert cr.train.texts[:5] == ["", "", "", "", "bad"], "blank lines count; sorted by words, then class"
    assert (cr.train.label[:4].tolist(), cr.train.texts[-1]) == ([0, 1, 1, 1], "a good phone")
    assert "café 1 ?" in trec.train.texts
    assert (len(cr.train), len(trec.train), len(trec.test), trec.dev) == (3775, 5452, 500, None)
    assert set(trec.train.label) == set(range(6))
    write_lines(tmp_path / "TREC/TREC_10.label", ["what is this"] * 500)
    assert "TREC_10.label:1: expected CLASS:detail and a question" in refusal(read_transfer, tmp_path)
    write_lines(tmp_path / "CR/custrev.pos", ["good"] * 2406)
    assert "custrev.pos: 2,406 lines, expected 2,407 as published; copy" in refusal(read_transfer, tmp_path)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is not here")
def test_the_published_folder_is_whole():
    suite = read_suite(SHARED / "senteval")
    assert (tuple(task.name for task in suite.transfer), suite.missing) == (TRANSFER_TASKS, [NO_CAPTIONS])
    assert {task.name: [len(part) for part in task.parts] for task in suite.transfer} == {
        "MR": [10662], "CR": [3775], "SUBJ": [10000], "MPQA": [10606], "SST-2": [67349, 872, 1821],
        "TREC": [5452, 500], "MRPC": [4076, 1725],
    }  # fmt: skip
    tasks = {task.name: task for task in suite.sts}
    stsb = tasks["STS-B"]
    first = (stsb.sentence1[0], stsb.sentence2[0], stsb.score[0], tasks["SICK-R"].score[0])
    assert first == ("a girl is styling her hair .", "a girl is brushing her hair .", 2.5, 3.3)
    assert all(np.isfinite(task.score).all() for task in tasks.values())
    assert all(text == " ".join(text.split()) != "" for task in tasks.values() for text in task.sentence1)


def test_what_was_written_comes_back(tmp_path):
    one, two, three = (Labelled(["", "a", "b"][:rows], np.arange(rows)) for rows in (1, 2, 3))
    second = Labelled(["a", "b"], np.array([2, 0]), ["c", ""])  # an empty text stays one
    suite = SuiteData(
        [
            make_task("STS12", 7),
            Splits("STS-B", {split: make_task(f"STS-B {split}", 5) for split in ("train", "test")}),
            TransferTask("SST-2", one, two, three),
            TransferTask("MRPC", second, None, second),
            CaptionPairs(list("abcde"), list("edcba"), np.linspace(0, 5, 5), np.arange(5) // 2),
        ],
        own=[
            BinaryPairs("binary", ["a", "b"], ["c", "d"], np.array([True, False]), 3),
            Triplets("triplets", ["a", "b"], ["c", "d"], ["e", "f"]),
            Retrieval("search", ["a", "b"], ["c", "d"], *np.array([[0, 1], [0, -1], [1, 2]]), own=np.array([1, -1])),
            LabelledTexts("labels", ["a", "b"], ["x", "y"], ["c", "d"], ["x", "y"]),
        ],
        missing=["TREC (TREC/train_5500.label)"],
    )
    write_tasks(tmp_path, test=suite.test, own=suite.own)
    (tmp_path / REPORT_FILE).write_text(json.dumps({"evaluation": {"missing": suite.missing}}), encoding="utf-8")
    assert repr(open_suite(PreparedData(tmp_path))) == repr(suite)
