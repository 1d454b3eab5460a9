"""The repository under the flows: DVC's graph of stages, and a few questions for git."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from cse.errors import CseError, error_line
from cse.settings import Settings
from cse.settings.load import flatten

_PATHS = (
    "data.train_path", "data.dev_path", "data.evaluation_path", "data.cxc_path", "data.task_path",
    "backbone.name", "objective.replaced_tokens.generator_folder", "objective.distillation.teacher_folder",
    "prompt.init_checkpoint",
)  # fmt: skip


def git(root: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a git command without the last newline."""
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"GIT_TERMINAL_PROMPT": "0"} | dict(environment or {}),
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        reason = next((line for line in lines if line.startswith(("fatal:", "error:", " ! "))), lines[-1])
        raise CseError(f"git {arguments[0]}: {reason.strip()}")
    return done.stdout.removesuffix("\n")


def find_root(start: Path | None = None) -> Path:
    """Return the folder of the DVC repository around a folder (default: the working folder)."""
    start = (start or Path.cwd()).resolve()
    root = next((folder for folder in (start, *start.parents) if (folder / ".dvc").is_dir()), None)
    if root is None:
        raise CseError(
            f"{start}: not inside a DVC repository; run in a clone of the project, or let the deployment's pull "
            "step fetch one"
        )
    try:
        git(root, "rev-parse", "--verify", "HEAD")
    except CseError:
        raise CseError(
            f"{root}: not a git repository with a commit; `git init`, `git add`, `git commit` first"
        ) from None
    return root


def project_folder(command: str) -> Path:
    """Return the working folder, for a command that reads ``params.yaml`` there."""
    here = Path.cwd()
    if not (here / "dvc.yaml").is_file() or not (here / ".dvc").is_dir():
        raise CseError(f"{here}: no dvc.yaml or .dvc here; run `{command}` in the project's folder")
    return find_root()


def author(root: Path) -> tuple[str, str]:
    """Return name and address of the committer; a worker's machine often has none."""
    try:
        return git(root, "config", "user.name"), git(root, "config", "user.email")
    except CseError:
        return "cse", "cse@localhost"


def has_origin(root: Path) -> bool:
    """Return whether git has a remote called origin."""
    return "origin" in git(root, "remote").splitlines()


def check_no_conflict(root: Path) -> None:
    """Refuse files with merge conflict markers."""
    mends = dict.fromkeys(("params.yaml", "dvc.yaml"), "resolve each conflict, then `git add` the file")
    mends["dvc.lock"] = "take either side with `git checkout --theirs dvc.lock`; the run brings it up to date"
    for name, mend in mends.items():
        text = (root / name).read_text(encoding="utf-8", errors="replace") if (root / name).is_file() else ""
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                raise CseError(f"{name}:{number}: unresolved merge conflict; {mend}")


def uncommitted(root: Path) -> list[str]:
    """Return tracked files whose content differs from the last commit."""
    return git(root, "diff", "--name-only", "HEAD").splitlines()


def stages_in_order(root: Path) -> list[str]:
    """Return the names of the stages of ``dvc.yaml``, each after those that it depends on, else as they stand there."""
    from dvc.repo import Repo

    with dvc_errors(root / "dvc.yaml"), Repo(str(root)) as repo:
        graph = repo.index.graph
        ours = {stage: stage.name for stage in graph if Path(stage.path).resolve() == root / "dvc.yaml"}
        written = list(YAML(typ="safe").load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"])

        def place(stage: Any) -> tuple[int, str]:  # DVC keeps stages in a set
            name = ours.get(stage, "").partition("@")[0]
            return written.index(name) if name in written else len(written), str(stage)

        before = {stage: sorted(graph.successors(stage), key=place) for stage in sorted(graph, key=place)}
        return [ours[stage] for stage in TopologicalSorter(before).static_order() if stage in ours]


@contextmanager
def dvc_errors(where: object, then: str = "") -> Iterator[None]:
    """Turn DVC's errors into one line: ``where``, DVC's message, and what to do ``then``."""
    from dvc.exceptions import DvcException

    try:
        yield
    except DvcException as error:
        raise CseError(f"{where}: {error_line(error)}{then}") from None


def json_at(root: Path, revision: str, file: Path) -> dict[str, Any]:
    """Return a JSON file as of a commit; empty if the commit has none."""
    try:
        tree: dict[str, Any] = json.loads(git(root, "show", f"{revision}:{file.as_posix()}"))
    except (ValueError, CseError):
        return {}
    return tree


def experiment_ref(name: str, root: Path) -> str:
    """Return the git reference of a DVC experiment on top of this commit."""
    head = git(root, "rev-parse", "HEAD")
    return f"refs/exps/{head[:2]}/{head[2:]}/{name}"


def paths_left_behind(settings: Settings, root: Path) -> dict[str, Any]:
    """Return the settings that name files which a copy of the repository would lack, with absolute paths.

    Neither git nor DVC tracks these files.
    """
    values: dict[str, Any] = flatten(settings.model_dump(mode="json"))
    paths = {key: _left_behind(str(values[key]), root) for key in _PATHS if values[key]}
    found: dict[str, Any] = {key: path for key, path in paths.items() if path is not None}
    more = [source | {"path": _left_behind(source["path"], root) or source["path"]} for source in values["data.more"]]
    return found | ({"data.more": more} if more != values["data.more"] else {})


def _left_behind(given: str, root: Path) -> str | None:
    path = root / given
    if not path.exists() or Path(given).is_absolute():
        return None
    outside = not path.resolve().is_relative_to(root.resolve())
    by_dvc = path.with_name(f"{path.name}.dvc").exists() or (path.is_dir() and any(path.glob("*.dvc")))
    if outside or (not by_dvc and git(root, "ls-files", "--others", "--", given)):
        return str(path.resolve())
    return None
