"""Where a run works: DVC's graph, a lock on the tree, a clone that shares everything, and a worker's fresh clone."""

import subprocess
import sys
import threading
import time

import pytest

from cse.errors import CseError
from cse.settings import load_settings
from flows.repository import check_no_conflict, find_root, git, paths_left_behind, stages_in_order, uncommitted
from flows.workspace import in_place, keep_remotes, snapshot, throwaway_clone
from tests.flows.repositories import commit, dvc, write
from tests.parts import refusal


def test_stages_are_in_order_from_anywhere_and_what_is_no_pipeline_is_one_line(repository, monkeypatch, tmp_path):
    third = "  a-third:\n    cmd: cp data/second.txt third.txt\n    deps: [data/second.txt]\n    outs: [third.txt]\n"
    write(repository / "dvc.yaml", (repository / "dvc.yaml").read_text() + third)
    monkeypatch.chdir(tmp_path)
    assert stages_in_order(repository) == ["first", "second", "a-third"]
    write(repository / "dvc.yaml", "stages:\n  broken: [\n")
    assert "dvc.yaml: " in refusal(stages_in_order, repository)
    (tmp_path / ".dvc").mkdir()
    assert "not a git repository with a commit" in refusal(find_root, tmp_path)


def test_both_sides_of_a_merge(repository):
    """A real conflict, made by git."""
    git(repository, "branch", "theirs")
    for branch in ("main", "theirs"):
        git(repository, "switch", "--quiet", branch)
        write(repository / "dvc.lock", f"a: {branch}\n")
        commit(repository, branch)
    assert "git merge" in refusal(git, repository, "merge", "main")
    assert "dvc.lock:1: unresolved merge conflict" in refusal(check_no_conflict, repository)
    git(repository, "checkout", "--quiet", "--theirs", "dvc.lock")
    check_no_conflict(repository)


def test_paths_that_a_copy_would_not_have(repository, tmp_path):
    for path in ("mine/rows.csv", "tracked/pairs.csv", "../outside/pairs.csv"):
        write(repository / path, "")
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


def test_a_clone_has_what_is_not_committed_yet(repository):
    write(repository / "params.yaml", "train:\n  epochs: 7\n")
    git(repository, "rm", "--quiet", "data/metrics/.gitkeep")
    write(repository / "untracked.txt", "stays here\n")
    before = git(repository, "status", "--short")
    with throwaway_clone(repository, "a-run") as place:
        assert (place.folder / "params.yaml").read_text() == "train:\n  epochs: 7\n"
        assert not (place.folder / "untracked.txt").exists()
        assert uncommitted(place.folder) == ["data/metrics/.gitkeep", "params.yaml"]
        assert git(place.folder, "rev-parse", "HEAD") == git(repository, "rev-parse", "HEAD")
    assert not place.folder.exists()
    assert (git(repository, "status", "--short"), git(repository, "stash", "list")) == (before, "")
    for name in ("a/b", ".."):
        with pytest.raises(CseError, match="its name must be valid for a folder"), throwaway_clone(repository, name):
            pass
    assert git(repository, "status", "--short") == before


def test_only_clones_of_killed_runs_are_removed(repository):
    """What a killed run left goes with the next one; a clone that somebody works in stays."""
    clones = repository / ".dvc/tmp/cse-runs"
    (clones / "killed").mkdir(parents=True)
    (clones / "killed.lock").touch()  # the kernel holds none for the dead
    with throwaway_clone(repository, "first") as first:
        assert sorted(path.name for path in clones.iterdir()) == ["first", "first.lock"]
        with throwaway_clone(repository, "second"):
            assert (first.folder / "dvc.yaml").is_file()
        with pytest.raises(CseError, match="is already working in a clone"), throwaway_clone(repository, "first"):
            pass
        assert (first.folder / "dvc.yaml").is_file()
    assert not list(clones.iterdir())


def test_a_snapshot_is_the_tree_as_it_is(repository):
    """Before the first commit of results: ``dvc.lock`` and metrics are not tracked yet, and stay so."""
    dvc(repository, "repro")
    before = git(repository, "status", "--short"), git(repository, "rev-parse", "HEAD")
    revision = snapshot(repository, "a model")
    assert git(repository, "rev-parse", f"{revision}^") == before[1]
    assert git(repository, "show", f"{revision}:dvc.lock") + "\n" == (repository / "dvc.lock").read_text()
    assert git(repository, "show", f"{revision}:data/metrics/train.json") == '{"dev_spearman": 1.0}'
    assert (git(repository, "status", "--short"), git(repository, "rev-parse", "HEAD")) == before
    last = commit(repository, "all of it")
    assert snapshot(repository, "a model") == last, "nothing new: the commit itself"


def test_a_second_run_in_the_tree_waits_and_a_dead_one_holds_nothing(repository):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom flows.workspace import in_place\n"
        "with in_place(Path(sys.argv[1]), print): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(repository)]).returncode == 9
    said, order, inside = [], [], threading.Event()

    def first() -> None:
        with in_place(repository, said.append):
            inside.set()
            time.sleep(1)
            order.append("first")

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(10)
    with in_place(repository, said.append):
        order.append("second")
    thread.join()
    assert order == ["first", "second"]
    assert said[0].startswith(f"another run is working in {repository}: waiting for it to finish") and len(said) == 1


def test_the_folder_beside_the_project_stays_the_remote_and_a_shared_one_as_it_is(repository, tmp_path):
    def remote() -> str:
        return dvc(clone, "remote", "list").replace("\n", "")  # DVC breaks long lines

    clone = tmp_path / "far/away/clone"
    clone.parent.mkdir(parents=True)
    git(repository, "clone", "--quiet", "--depth", "1", repository.as_uri(), str(clone))
    assert str(tmp_path / "far/away/remote") in remote(), "without the step: beside the clone"
    told = refusal(keep_remotes, str(clone), "/nowhere/project")
    assert "'local' is a folder on the machine you deployed from; add one" in told
    assert keep_remotes(str(clone), str(repository)) == {"directory": str(clone)}
    assert str(tmp_path / "remote") in remote() and "far/away" not in remote()
    assert git(clone, "status", "--short") == ""
    write(repository / ".dvc/config.local", f"['remote \"local\"']\n    url = {tmp_path}/mine\n")
    keep_remotes(str(clone), str(repository))
    assert str(tmp_path / "mine") in remote(), "a remote of one's own counts too"
    write(repository / ".dvc/config", "[core]\n    remote = s\n['remote \"s\"']\n    url = s3://bucket/path\n")
    commit(repository, "shared")
    git(clone, "pull", "--quiet")
    (clone / ".dvc/config.local").unlink()
    keep_remotes(str(clone), "/nowhere")
    assert "s3://bucket/path" in remote()
