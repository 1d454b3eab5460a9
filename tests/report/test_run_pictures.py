"""Figures of one run, as flows show them."""

from __future__ import annotations

import csv
import io

from cse.report.pictures import draw_scores, draw_training


def test_bars_by_task_and_model(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text("task,model,spearman\nSTS-B,trained,84.5\nSTS-B,backbone,82.03\nSICK-R,trained,-3.0\n")
    picture = draw_scores(path)
    assert picture.png.startswith(b"\x89PNG")
    for text in ("STS-B", "SICK-R", "trained", "backbone", "84.50", "82.03"):
        assert text in picture.svg
    assert list(csv.DictReader(io.StringIO(picture.data)))[2] == {
        "task": "SICK-R", "model": "trained", "spearman": "-3.0",
    }  # fmt: skip


def test_loss_and_dev_score(tmp_path):
    (tmp_path / "train.csv").write_text("step,nt_xent,loss\n5,1.0,2.0\n10,0.5,1.5\n")
    (tmp_path / "dev.csv").write_text("step,spearman\n10,88.0\n")
    picture = draw_training(tmp_path)
    assert "dev Spearman" in picture.svg
    assert picture.data == "step,loss,spearman\n5,2.0,\n10,1.5,88.0\n"
    (tmp_path / "dev.csv").unlink()
    assert "dev Spearman" not in draw_training(tmp_path).svg, "no dev pairs, no axis"
    (tmp_path / "dev.csv").write_text("step,score\n0,50.5\n10,88.0\n")
    picture = draw_training(tmp_path)
    assert (picture.caption, picture.data.splitlines()[0]) == ("loss, and dev score", "step,loss,score")


def test_nothing_to_draw(tmp_path):
    assert draw_scores(tmp_path / "sts.csv") is None
    assert draw_training(tmp_path) is None
