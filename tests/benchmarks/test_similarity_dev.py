"""The pairs that choose a study's settings come from training and dev parts alone."""

from __future__ import annotations

import csv
from pathlib import Path

from click.testing import CliRunner

from benchmarks.similarity_dev import main


def test_dev_pairs_of_three_tasks_on_one_scale(tmp_path: Path):
    sts, sick = tmp_path / "STS/STSBenchmark", tmp_path / "SICK"
    sts.mkdir(parents=True)
    sick.mkdir()
    (sts / "sts-dev.csv").write_text('images\tMSRvid\t2012test\t0\t3.4\ta "dog" .\ta cat .\n', encoding="utf-8")
    rows = ["news\tMSRpar\t2012train\t1\t5.0\tone\ttwo", "news\tMSRpar\t2012test\t2\t1.0\tunder test\tthree"]
    rows.append('images\tMSRvid\t2012train\t3\t3.0\ta cat .\ta "dog" .')  # as in dev, with another score
    (sts / "sts-train.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (sick / "SICK_trial.txt").write_text(head + "4\tfour\tfive\t1.0\tNEUTRAL\n", encoding="utf-8")
    train = "".join(f"{n}\tleft {n}\tright {n}\t4.2\tENTAILMENT\n" for n in range(1003))
    (sick / "SICK_train.txt").write_text(head + train, encoding="utf-8")

    out = tmp_path / "similarity/pairs.csv"
    done = CliRunner().invoke(main, [str(tmp_path), str(out)])

    assert done.output == f"{out}: 1,003 pairs\n"
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ["sentence1", "sentence2", "score"]
    assert found[1:4] == [['a "dog" .', "a cat .", "3.4"], ["one", "two", "5.0"], ["four", "five", "0.0"]]
    assert len({first for first, _, _ in found[4:]}) == 1000
    assert {score for _, _, score in found[4:]} == {"4.0"}
