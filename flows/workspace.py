"""Where a run works: in the user's tree, one run at a time, or in a throwaway clone.

A clone shares git's objects and DVC's cache with its source tree, so it is cheap and recomputes nothing. Its results
come back as a DVC experiment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cse.errors import CseError
from cse.process import only_one, throwaway_folder
from cse.stages.common import SCRATCH, SCRATCH_VARIABLE
from flows.processes import CommandError, last_after, run_dvc
from flows.repository import author, experiment_ref, git, has_origin


@dataclass(frozen=True)
class Workspace:
    """Where the stages of a run work.

    Attributes:
        source: the tree it was cloned from; the same folder if the run works in place.
    """

    folder: Path
    source: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_place(self) -> bool:
        """Whether the run works in the user's own tree."""
        return self.folder == self.source


@contextmanager
def in_place(root: Path, say: Callable[[str], object]) -> Iterator[Workspace]:
    """Work in the tree itself; a second run in the same tree waits for the first.

    Prefect's limit is one deployment's; this lock is also for other deployments and for runs without a server.
    """
    lock = root / ".dvc/tmp/cse-flow.lock"
    busy = f"another run is working in {root}: waiting for it to finish; cancel this run to stop waiting"
    with ExitStack() as stack:
        try:
            stack.enter_context(only_one(lock, busy))
        except CseError as error:
            say(str(error))
            stack.enter_context(only_one(lock, busy, wait=-1))
        yield Workspace(root, root)


@contextmanager
def throwaway_clone(root: Path, run: str) -> Iterator[Workspace]:
    """Work in a clone of the last commit plus uncommitted changes of tracked files; remove it at the end."""
    if Path(run).name != run or run.startswith("."):
        raise CseError(f"run {run!r}: its name must be valid for a folder; use letters, digits, dots and dashes")
    folder = root / ".dvc/tmp/cse-runs" / run
    with throwaway_folder(folder, "*", f"run {run}: is already working in a clone; wait for it to finish"):
        # not a `git worktree`: worktrees share refs/exps/exec, where DVC tracks the running experiment, so saving one
        # here breaks a `dvc exp run` in the source tree
        git(root, "status", "--short")  # reads anew what was copied or touched: `stash create` fails on that, silently
        changes = git(root, "stash", "create", environment=identity(root))  # a commit outside the history
        git(root, "clone", "--quiet", "--shared", str(root), str(folder))
        git(folder, "checkout", "--quiet", "--detach", git(root, "rev-parse", "HEAD"))
        if changes:
            git(folder, "read-tree", "-u", "--reset", changes)
            git(folder, "reset", "--quiet")  # back to uncommitted changes of the working tree
        _share_dvc(root, folder)
        scratch = (root / SCRATCH).resolve()  # lets a later clone resume a killed training of the same settings
        yield Workspace(folder, root, {SCRATCH_VARIABLE: str(scratch)})


def _share_dvc(root: Path, folder: Path) -> None:
    """Give the clone its source's cache, local configuration and remotes."""
    from dvc.config import Config
    from dvc.repo import Repo

    local = root / ".dvc/config.local"
    if local.is_file():
        shutil.copyfile(local, folder / ".dvc/config.local")
    with Repo(str(root)) as repo, Config(str(folder / ".dvc"), validate=False).edit("local") as config:
        config.setdefault("cache", {})["dir"] = str(repo.cache.local_cache_dir)
        for name, url in remotes_of(root).items():
            if "://" not in url:  # relative to a folder that the clone is not in
                config.setdefault("remote", {}).setdefault(name, {})["url"] = url
    _dvc(["checkout", "--quiet", "--allow-missing"], folder)


def remotes_of(root: Path) -> dict[str, str]:
    """Return addresses of DVC's remotes by name; folders as absolute paths."""
    from dvc.config import Config

    config = Config(str(root / ".dvc"), validate=False)
    return {name: str(remote["url"]) for name, remote in config.get("remote", {}).items() if "url" in remote}


def keep_remotes(directory: str, folder: str) -> dict[str, str]:
    """Let a fresh clone use the DVC remotes of the folder it was deployed from: a step of ``prefect.yaml``.

    The default remote is a folder next to the clone. A worker's clone is elsewhere and thrown away, along with
    anything pushed next to it.
    """
    from dvc.config import Config

    clone, deployed = Path(directory).resolve(), Path(folder)
    theirs = remotes_of(deployed) if deployed.is_dir() else {}
    with Config(str(clone / ".dvc"), validate=False).edit("local") as config:
        for name, url in remotes_of(clone).items():
            place = theirs.get(name, url)
            if "://" in place:
                continue
            if name not in theirs and not Path(place).exists():
                raise CseError(
                    f"DVC remote {name!r} is a folder on the machine you deployed from; add one that workers reach: "
                    "dvc remote add --default shared s3://BUCKET/PATH, commit, deploy again"
                )
            config.setdefault("remote", {}).setdefault(name, {})["url"] = place
    return {"directory": str(clone)}


def keep_as_experiment(workspace: Workspace, name: str) -> str:
    """Save a clone's results as a DVC experiment of its source tree, and return the revision."""
    for_git = [part for path in left_to_git(workspace.folder) for part in ("--include-untracked", path)]
    _dvc(["exp", "save", "--quiet", "--force", "--name", name, *for_git], workspace.folder, identity(workspace.source))
    reference = experiment_ref(name, workspace.folder)
    revision = git(workspace.folder, "for-each-ref", "--format=%(objectname)", reference)
    if not revision:
        raise CseError(f"DVC saved no experiment {name!r}; the outputs are still in its cache")
    git(workspace.source, "fetch", "--quiet", str(workspace.folder), f"+{reference}:{reference}")
    return revision


def push_experiment(root: Path, name: str) -> None:
    """Push an experiment to git's origin, if there is one."""
    if has_origin(root):
        reference = experiment_ref(name, root)
        git(root, "push", "--quiet", "origin", f"+{reference}:{reference}")


def _dvc(arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
    try:
        run_dvc(arguments, folder, lambda line: None, environment)
    except CommandError as error:
        raise CseError(f"dvc {arguments[0]}: {last_after('ERROR: ', error.last_lines) or 'no message'}") from None


def snapshot(root: Path, message: str) -> str:
    """Return a commit of the tracked files as they are and of what DVC wants tracked; leave tree and branch alone.

    Its parent is the last commit. Used to register a model before its ``dvc.lock`` is committed.
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
    """Return the paths from the root that DVC leaves to git: ``dvc.lock``, small metrics, and ignore files."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        by_git = [Path(out.fs_path).relative_to(root).as_posix() for out in repo.index.outs if not out.use_cache]
    ignores = git(root, "ls-files", "--others", "--exclude-standard", "--", "*.gitignore").splitlines()
    return [path for path in ["dvc.lock", *by_git, *ignores] if (root / path).exists()]


def identity(root: Path) -> dict[str, str]:
    """Return the committer as variables for git, but for those that are set."""
    pairs = zip(("NAME", "EMAIL"), author(root), strict=True)
    variables = {f"GIT_{role}_{part}": value for part, value in pairs for role in ("AUTHOR", "COMMITTER")}
    return {name: value for name, value in variables.items() if name not in os.environ}
