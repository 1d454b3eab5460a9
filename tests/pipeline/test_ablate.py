"""``cse ablate`` with real DVC experiments: what fails costs no other cell, and nothing of the user's changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = ("python", "-m", "cse", "ablate", "prompt-length")


def cells(workspace: Workspace) -> dict[str, dict[str, dict[str, float]]]:
    tree = json.loads((workspace.folder / "data/ablations/prompt-length/cells.json").read_text(encoding="utf-8"))
    return {cell["label"]: cell["runs"] for cell in tree["cells"]}


def experiments(workspace: Workspace) -> set[str]:
    return set(workspace.run("git", "for-each-ref", "--format=%(refname:lstrip=4)", "refs/exps").split())


def test_data_that_git_and_dvc_do_not_know_are_read_where_they_lie(finished_tiny_clone, tmp_path):
    workspace = finished_tiny_clone.copy(tmp_path / "work")
    (workspace.folder / "data/raw/train/rows.csv").rename(tmp_path / "outside.csv")
    workspace.set({"data.train_path": "../outside.csv"})
    workspace.commit()
    params = (workspace.folder / "params.yaml").read_bytes()
    shutil.copytree(workspace.folder / "backbone", workspace.folder / "other")  # not committed
    # without dev pairs the last weights are kept; with them every cell could keep one and the same start
    options = ("-s", "backbone.name=other", "-s", "data.dev_path=data/raw/cxc", "-s", "train.learning_rate=0.3")
    output = workspace.run(*COMMAND[:-1], "margin", "--values", "0.2", *options)
    tree = json.loads((workspace.folder / "data/ablations/margin/cells.json").read_text(encoding="utf-8"))
    assert [set(cell["runs"]) for cell in tree["cells"]] == [{"42"}, {"42"}]
    assert len({cell["runs"]["42"]["evaluation"] for cell in tree["cells"]}) == 2, "cells are different trainings"
    for cell in tree["cells"]:
        assert f"{cell['label']}, seed 42: evaluation {cell['runs']['42']['evaluation']:.2f}" in output
    assert tree["data"] == "outside.csv, 160 triplets"
    assert (workspace.folder / "params.yaml").read_bytes() == params


def test_a_cell_that_fails_costs_no_other_and_the_other_can_be_applied(finished_tiny_clone, tmp_path):
    workspace = finished_tiny_clone.copy(tmp_path / "work")
    # 600 prompts do not fit beside the tokens of a backbone with few positions
    output = workspace.run(*COMMAND, "--values", "600,3", fails=True)
    assert "prompt-length-prompt-length-600-s42-" in output
    assert "error: ablation prompt-length: 1 of 2 cells failed" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert set(cells(workspace)["prompt length 3"]) == {"42"}
    assert cells(workspace)["prompt length 600"] == {}

    (name,) = experiments(workspace)
    workspace.run(*COMMAND, "--values", "3")
    assert experiments(workspace) == {name}, "a cell whose experiment is there is not run again"
    expected = cells(workspace)["prompt length 3"]["42"]
    workspace.dvc("exp", "apply", name)
    metrics = json.loads((workspace.folder / "data/metrics/evaluation.json").read_text(encoding="utf-8"))
    assert {key: value for key, value in expected.items() if key != "dev"} == metrics["trained"]
    assert "length: 3" in (workspace.folder / "params.yaml").read_text(encoding="utf-8")
    assert "didn't change, skipping" in workspace.dvc("repro")


def test_mistakes_are_one_line_before_anything_runs(finished_tiny_clone, tmp_path):
    workspace = finished_tiny_clone.copy(tmp_path / "work")
    for arguments, message in (
        (["--values", "a,b"], "--values a,b: separate numbers with commas, for instance 4,12,20"),
        (["--values", "0"], "prompt.length"),
        (["-s", "train.epoch=2"], "train.epoch: unknown key; did you mean 'train.epochs'?"),
    ):
        (line,) = workspace.run(*COMMAND, *arguments, fails=True).splitlines()
        assert line.startswith("error: ")
        assert message in line
    assert not (workspace.folder / "data/ablations").exists()


def test_outside_a_project_it_is_one_line(tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    (tmp_path / "params.yaml").write_text("prompt: {length: 4}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *COMMAND[1:]], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().endswith("no dvc.yaml or .dvc here; run `cse ablate` in the project's folder")
