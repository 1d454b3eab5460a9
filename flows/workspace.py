"""Where a run works: in the user's tree, one run at a time, or in a throwaway clone that leaves the tree alone.

A clone shares the objects of git and the cache of DVC with the tree it was made from, so it costs little and a result
that exists is not computed again. What it made is handed back as a DVC experiment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from cse.errors import CseError
from cse.process import throwaway_folder
from cse.stages.common import SCRATCH, SCRATCH_VARIABLE
from flows.processes import CommandError, run_dvc
from flows.repository import author, experiment, experiment_ref, git, last_line_with

_LOCK = "cse-flow.lock"
_OWNER = "cse-flow.owner"
_CLONES = "cse-runs"


@dataclass(frozen=True)
class Workspace:
    """Where the stages of a run work.

    Attributes:
        folder: the DVC repository that they run in.
        source: the tree that it was made from; the same folder where the run works in place.
        environment: variables for the stages.
    """

    folder: Path
    source: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_place(self) -> bool:
        """Whether the run works in the user's own tree."""
        return self.folder == self.source


@contextmanager
def in_place(root: Path, run: str, say: Callable[[str], object]) -> Iterator[Workspace]:
    """Work in the tree itself; a second run in the same tree waits until the first is over.

    The lock is the kernel's: it ends with the process that holds it, however that dies.
    """
    lock, owner = FileLock(root / ".dvc/tmp" / _LOCK), root / ".dvc/tmp" / _OWNER
    owner.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        who = owner.read_text(encoding="utf-8").strip() if owner.is_file() else "another run"
        say(f"{who} works in {root}: waiting until it is over; cancel this run to give up")
        lock.acquire(poll_interval=0.5)
    try:
        owner.write_text(f"run {run} (process {os.getpid()})\n", encoding="utf-8")
        yield Workspace(root, root)
    finally:
        lock.release()


@contextmanager
def throwaway_clone(root: Path, run: str) -> Iterator[Workspace]:
    """Work in a clone of the last commit with the uncommitted changes of tracked files; it is removed at the end.

    Raises:
        CseError: a run of this name works already, its name is no folder's, or git or DVC refused.
    """
    if Path(run).name != run or run.startswith("."):
        raise CseError(f"run {run!r}: its name becomes a folder's; give it one of letters, digits, dots and dashes")
    folder = root / ".dvc/tmp" / _CLONES / run
    with throwaway_folder(folder, "*", f"run {run}: works in a clone already; wait until it is over"):
        _clone(root, folder)
        _share_dvc(root, folder)
        scratch = (root / SCRATCH).resolve()  # a killed training of the same settings goes on in a later clone
        yield Workspace(folder, root, {SCRATCH_VARIABLE: str(scratch)})


def _clone(root: Path, folder: Path) -> None:
    # not a `git worktree`: worktrees share refs/exps/exec, where DVC tracks the running experiment, so saving one here
    # breaks a `dvc exp run` in the source tree
    changes = git(root, "stash", "create", environment=identity(root))  # a commit beside the history; the tree stays
    git(root, "clone", "--quiet", "--shared", str(root), str(folder))
    git(folder, "checkout", "--quiet", "--detach", git(root, "rev-parse", "HEAD"))
    if changes:
        git(folder, "read-tree", "-u", "--reset", changes)
        git(folder, "reset", "--quiet")  # changes of the working tree, as they were


def _share_dvc(root: Path, folder: Path) -> None:
    """Give the clone the cache, the local configuration and the remotes of its source."""
    from dvc.config import Config
    from dvc.repo import Repo

    local = root / ".dvc/config.local"
    if local.is_file():
        shutil.copyfile(local, folder / ".dvc/config.local")
    with Repo(str(root)) as repo:
        cache = repo.cache.local_cache_dir
        remotes = {name: str(remote["url"]) for name, remote in repo.config["remote"].items() if "url" in remote}
    with Config(str(folder / ".dvc"), validate=False).edit("local") as config:
        config.setdefault("cache", {})["dir"] = str(cache)
        for name, url in remotes.items():
            if "://" not in url:  # relative to a folder that the clone does not lie in
                config.setdefault("remote", {}).setdefault(name, {})["url"] = url
    _dvc(["checkout", "--quiet", "--allow-missing"], folder)


def keep_as_experiment(workspace: Workspace, name: str) -> str:
    """Save what a clone made as a DVC experiment of the tree that it was made from, and return its revision.

    Raises:
        CseError: git or DVC refused.
    """
    for_git = [part for path in left_to_git(workspace.folder) for part in ("--include-untracked", path)]
    _dvc(["exp", "save", "--quiet", "--force", "--name", name, *for_git], workspace.folder, identity(workspace.source))
    return bring_over(workspace, name)


def bring_over(workspace: Workspace, name: str) -> str:
    """Hand an experiment of a clone to the tree that the clone was made from, and return its revision.

    Raises:
        CseError: there is none.
    """
    revision = experiment(name, workspace.folder)
    if revision is None:
        raise CseError(f"DVC saved no experiment {name!r}; the outputs are in its cache all the same")
    reference = experiment_ref(name, workspace.folder)
    git(workspace.source, "fetch", "--quiet", str(workspace.folder), f"+{reference}:{reference}")
    return revision


def _dvc(arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    try:
        run_dvc(arguments, folder, lambda line: None, environment)
    except CommandError as error:
        said = last_line_with(error.last_lines, "ERROR: ") or "no message"
        raise CseError(f"dvc {arguments[0]}: {said.removeprefix('ERROR: ')}") from None


def snapshot(root: Path, message: str) -> str:
    """Return a commit of the tracked files as they are now, and of what DVC wants tracked; tree and branch stay.

    Its parent is the last commit. For a model that is registered from a tree whose ``dvc.lock`` is not committed yet.
    """
    index = root / ".dvc/tmp" / f"snapshot-{os.getpid()}.index"
    environment = {"GIT_INDEX_FILE": str(index)} | identity(root)
    try:
        git(root, "read-tree", "HEAD", environment=environment)
        git(root, "add", "--update", environment=environment)
        git(root, "add", "--", *left_to_git(root), environment=environment)
        tree = git(root, "write-tree", environment=environment)
        if tree == git(root, "rev-parse", "HEAD^{tree}"):
            return git(root, "rev-parse", "HEAD")
        return git(root, "commit-tree", tree, "-p", "HEAD", "-m", message, environment=environment)
    finally:
        index.unlink(missing_ok=True)


def left_to_git(root: Path) -> list[str]:
    """Return what DVC leaves to git, from the root: ``dvc.lock``, small metrics, and the files that ignore the rest."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        by_git = [Path(out.fs_path).relative_to(root).as_posix() for out in repo.index.outs if not out.use_cache]
    ignores = git(root, "ls-files", "--others", "--exclude-standard", "--", "*.gitignore").splitlines()
    return [path for path in ["dvc.lock", *by_git, *ignores] if (root / path).exists()]


def identity(root: Path) -> dict[str, str]:
    """Return variables that say who commits, where git was not told."""
    try:
        git(root, "config", "user.email")
    except CseError:
        name, email = author(root).values()
        who = {f"GIT_{role}_NAME": name for role in ("AUTHOR", "COMMITTER")}
        who |= {f"GIT_{role}_EMAIL": email for role in ("AUTHOR", "COMMITTER")}
        return {variable: value for variable, value in who.items() if variable not in os.environ}
    return {}
