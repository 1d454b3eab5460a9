"""SentEval's folder: counts, text as SentEval reads it, and what happens when parts are missing or changed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.data.suite import NO_CAPTIONS, SICK_TEST, STSB, YEARS, read_stsb, read_suite
from cse.errors import CseError

SHARED = Path(__file__).parents[2].parent / "shared/data/senteval"
TOTALS = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927}


def make(root, skip=(), blank=True):
    """Write a SentEval folder of made-up sentences with the published numbers of pairs."""
    for year, subsets in YEARS.items():
        folder = root / f"STS/{year}-en-test"
        folder.mkdir(parents=True)
        for subset, pairs in subsets.items():
            gold, lines = [], []
            for n in range(pairs):
                lines.append(f'{subset} "one  {n}\tother\u00a0two {n} .')
                gold.append(f"{n % 6}")
                if blank and year in ("STS15", "STS16"):
                    lines.append("not\tscored")
                    gold.append("")
            (folder / f"STS.input.{subset}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
            (folder / f"STS.gs.{subset}.txt").write_text("\n".join(gold) + "\n", encoding="utf-8")
    folder = root / "STS/STSBenchmark"
    folder.mkdir()
    for split, pairs in STSB.items():
        rows = [f'genre\tfile\tyear\t{n}\t2.5\ta "{n}\tb\u2028c\textra' for n in range(pairs)]
        (folder / f"sts-{split}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (root / "SICK").mkdir()
    rows = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
    rows += [f"{n}\tA cat\tA dog\t3.3\tNEUTRAL" for n in range(SICK_TEST)]
    (root / "SICK/SICK_test_annotated.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for gone in skip:
        path = root / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return root


def test_a_whole_folder_gives_seven_tasks_and_dev(tmp_path):
    found = read_suite(make(tmp_path / "downstream"))
    assert {task.name: len(task) for task in found.sts} == TOTALS
    assert len(found.dev) == 1500
    assert found.dev.name == "STS-B dev"
    assert found.missing[0].startswith("MR (") and found.missing[-1] == NO_CAPTIONS
    sts12 = found.sts[0]
    assert sts12.sentence1[1] == 'MSRpar "one 1'
    assert sts12.sentence2[1] == "other two 1 ."
    assert list(dict.fromkeys(sts12.subset)) == list(YEARS["STS12"])
    assert found.sts[5].sentence2[0] == "b c"
    for outer in (tmp_path, tmp_path / "downstream"):
        assert len(read_suite(outer).sts) == 7


def test_a_partial_folder_says_what_is_missing(tmp_path):
    make(tmp_path, skip=["SICK", "STS/STS13-en-test/STS.gs.FNWN.txt", "STS/STSBenchmark/sts-dev.csv"])
    found = read_suite(tmp_path)
    assert [task.name for task in found.sts] == ["STS12", "STS14", "STS15", "STS16", "STS-B"]
    assert found.dev is None
    assert found.missing[:3] == [
        "STS13 (STS/STS13-en-test/STS.gs.FNWN.txt)",
        "SICK-R (SICK/SICK_test_annotated.txt)",
        "STS-B dev (STS/STSBenchmark/sts-dev.csv)",
    ]


def test_nothing_there_lists_the_layout(tmp_path):
    with pytest.raises(CseError, match=r"expected STS/STS12-en-test .* STS/STSBenchmark, SICK, MR"):
        read_suite(tmp_path)


def test_changed_files_are_refused(tmp_path):
    make(tmp_path)
    gold = tmp_path / "STS/STS12-en-test/STS.gs.MSRpar.txt"
    lines = gold.read_text(encoding="utf-8").split("\n")
    gold.write_text("\n".join(["", *lines[1:]]), encoding="utf-8")
    with pytest.raises(CseError, match=r"STS.gs.MSRpar.txt: 749 scored pairs, expected 750 as published"):
        read_suite(tmp_path)
    gold.write_text("\n".join(["nan", *lines[1:]]), encoding="utf-8")
    with pytest.raises(CseError, match=r"MSRpar.txt:1: score 'nan' is not a number from 0 to 5"):
        read_suite(tmp_path)
    gold.write_text("\n".join(lines[1:]), encoding="utf-8")
    with pytest.raises(CseError, match=r"749 lines, but STS.input.MSRpar.txt has 750"):
        read_suite(tmp_path)

    (tmp_path / "STS/STSBenchmark/sts-dev.csv").write_text("a\tb\tc\n", encoding="utf-8")
    with pytest.raises(CseError, match=r"sts-dev.csv:1: 3 fields separated by tabs, expected 7"):
        read_stsb(tmp_path, "dev")


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is not here")
def test_first_pairs_as_published():
    tasks = {task.name: task for task in read_suite(SHARED).sts}
    first = [(task.sentence1[0], task.sentence2[0], task.score[0]) for task in (tasks["STS-B"],)]
    assert first == [("a girl is styling her hair .", "a girl is brushing her hair .", 2.5)]
    assert tasks["SICK-R"].score[0] == 3.3
    assert all(np.isfinite(task.score).all() for task in tasks.values())
    assert all(text == " ".join(text.split()) != "" for task in tasks.values() for text in task.sentence1)
