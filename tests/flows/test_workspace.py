"""Where a run works: a lock on the tree, a clone that shares everything and changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from cse.errors import CseError
from flows.repository import git, uncommitted
from flows.workspace import in_place, keep_as_experiment, snapshot, throwaway_clone
from tests.flows.repositories import commit, copy, dvc, keep_apart, write


@pytest.fixture(scope="module")
def results(first_commit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        keep_apart(patch, folder)
        root = copy(first_commit, folder / "project")
        dvc(root, "repro")
        commit(root, "results")
    return root


@pytest.fixture
def finished(results, tmp_path, monkeypatch):
    keep_apart(monkeypatch, tmp_path)
    return copy(results, tmp_path / "project")


def test_a_clone_has_what_is_not_committed_yet(finished):
    write(finished / "params.yaml", "train:\n  epochs: 7\n")
    git(finished, "rm", "--quiet", "data/metrics/.gitkeep")
    write(finished / "untracked.txt", "stays here\n")
    before = git(finished, "status", "--short")
    with throwaway_clone(finished, "a-run") as place:
        assert not place.in_place
        assert place.folder != finished
        assert (place.folder / "params.yaml").read_text() == "train:\n  epochs: 7\n"
        assert not (place.folder / "data/metrics/.gitkeep").exists()
        assert not (place.folder / "untracked.txt").exists()
        assert uncommitted(place.folder) == ["data/metrics/.gitkeep", "params.yaml"]
        assert git(place.folder, "rev-parse", "HEAD") == git(finished, "rev-parse", "HEAD")
    assert not place.folder.exists()
    assert git(finished, "status", "--short") == before
    assert git(finished, "stash", "list") == ""


@pytest.mark.parametrize("name", ["a/b", ".."])
def test_a_run_whose_name_is_no_folders_is_refused(finished, name):
    before = sorted(path for path in finished.rglob("*") if ".git/" not in str(path))
    with pytest.raises(CseError, match="its name must be valid for a folder"), throwaway_clone(finished, name):
        pass
    assert sorted(path for path in finished.rglob("*") if ".git/" not in str(path)) == before


def test_only_clones_of_killed_runs_are_removed(finished):
    """What a killed run left goes with the next one; a clone that somebody works in stays."""
    clones = finished / ".dvc/tmp/cse-runs"
    (clones / "killed").mkdir(parents=True)
    (clones / "killed.lock").touch()  # the kernel holds none for the dead
    with throwaway_clone(finished, "first") as first:
        assert sorted(path.name for path in clones.iterdir()) == ["first", "first.lock"]
        with throwaway_clone(finished, "second"):
            assert (first.folder / "dvc.yaml").is_file()
        with pytest.raises(CseError, match="is already working in a clone"), throwaway_clone(finished, "first"):
            pass
        assert (first.folder / "dvc.yaml").is_file()
    assert not list(clones.iterdir())


def test_what_a_clone_made_becomes_an_experiment(finished):
    lock = (finished / "dvc.lock").read_text()
    with throwaway_clone(finished, "a-run") as place:
        write(place.folder / "source.txt", "another text\n")
        dvc(place.folder, "repro")
        revision = keep_as_experiment(place, "another")
    assert (finished / "dvc.lock").read_text() == lock
    assert git(finished, "show", f"{revision}:source.txt") == "another text"
    assert git(finished, "show", f"{revision}:dvc.lock") + "\n" != lock
    assert git(finished, "rev-parse", f"{revision}^") == git(finished, "rev-parse", "HEAD")
    dvc(finished, "exp", "apply", "another")
    assert (finished / "data/second.txt").read_text() == "another text\n"


def test_a_snapshot_is_the_tree_as_it_is(repository):
    """Before the first commit of results: ``dvc.lock`` and metrics are not tracked yet, and stay so."""
    dvc(repository, "repro")
    before, head = git(repository, "status", "--short"), git(repository, "rev-parse", "HEAD")
    revision = snapshot(repository, "a model")
    assert revision != head
    assert git(repository, "rev-parse", f"{revision}^") == head
    assert git(repository, "show", f"{revision}:dvc.lock") + "\n" == (repository / "dvc.lock").read_text()
    assert json.loads(git(repository, "show", f"{revision}:data/metrics/train.json")) == {"dev_spearman": 1.0}
    assert git(repository, "status", "--short") == before
    assert git(repository, "rev-parse", "HEAD") == head

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
    with in_place(repository, said.append) as place:
        order.append("second")
        assert place.in_place
    thread.join()
    assert order == ["first", "second"]
    assert said == [
        f"another run is working in {repository}: waiting for it to finish; cancel this run to stop waiting"
    ]
