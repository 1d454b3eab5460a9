from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.settings import load_settings
from flows.repository import check_no_conflict, find_root, git, paths_left_behind, stages_in_order
from tests.flows.repositories import commit, write
from tests.parts import refusal


def test_a_stage_that_is_added_appears_from_anywhere(repository, monkeypatch, tmp_path):
    third = "  a-third:\n    cmd: cp data/second.txt third.txt\n    deps: [data/second.txt]\n    outs: [third.txt]\n"
    with (repository / "dvc.yaml").open("a") as file:
        file.write(third)
    monkeypatch.chdir(tmp_path)
    assert stages_in_order(repository) == ["first", "second", "a-third"]


def test_what_is_no_pipeline_is_one_line(repository, tmp_path):
    write(repository / "dvc.yaml", "stages:\n  broken: [\n")
    assert "dvc.yaml: " in refusal(stages_in_order, repository)
    (tmp_path / ".dvc").mkdir()
    assert "not a git repository with a commit" in refusal(find_root, tmp_path)


def test_both_sides_of_a_merge(repository):
    """A real conflict, made by git."""
    write(repository / "dvc.lock", "a: 1\n")
    commit(repository, "base")
    git(repository, "switch", "--quiet", "--create", "theirs")
    write(repository / "dvc.lock", "a: 2\n")
    commit(repository, "theirs")
    git(repository, "switch", "--quiet", "main")
    write(repository / "dvc.lock", "a: 3\n")
    commit(repository, "ours")
    with pytest.raises(CseError, match="git merge"):
        git(repository, "merge", "theirs")
    with pytest.raises(CseError, match=r"dvc\.lock:1: unresolved merge conflict"):
        check_no_conflict(repository)
    git(repository, "checkout", "--quiet", "--theirs", "dvc.lock")
    check_no_conflict(repository)


def test_paths_that_a_copy_would_not_have(repository, tmp_path):
    write(repository / "mine/rows.csv", "text\na\n")
    write(repository / "tracked/pairs.csv", "sentence1,sentence2,score\na,b,1\n")
    write(tmp_path / "outside/pairs.csv", "sentence1,sentence2,score\na,b,1\n")
    git(repository, "add", "tracked")
    write(
        repository / "params.yaml",
        "data: {source: files, train_path: mine/rows.csv, dev_path: tracked, evaluation_path: ../outside,\n"
        "  more: [{name: a, path: mine/rows.csv, view: triplets}, {name: b, path: tracked, view: triplets}]}\n",
    )
    found = paths_left_behind(load_settings(repository / "params.yaml"), repository)
    assert [one["path"] for one in found.pop("data.more")] == [str(repository / "mine/rows.csv"), "tracked"]
    assert found == {
        "data.train_path": str(repository / "mine/rows.csv"),
        "data.evaluation_path": str(tmp_path / "outside"),
    }
