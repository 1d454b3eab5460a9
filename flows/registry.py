"""Versions and stages of models: git tags, kept by GTO; files come from DVC at the tagged commit.

``sentence-encoder@v1.2.0`` names a version, ``sentence-encoder#production#3`` a promotion. A model is promoted only
through the gate: ``cse.stages.bank``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cse.errors import CseError, error_line, nearest
from cse.evaluation.dev_facts import dev_of
from cse.settings import Settings
from cse.settings.load import parse_yaml, read_text
from cse.stages.common import BUNDLE, CHECKPOINT, METRICS, PREPARED
from flows.repository import author, dvc_errors, git, has_origin, json_at

if TYPE_CHECKING:
    from cse.stages.bank import Verdict

_FIRST = "v1.0.0"
PRODUCTION = "production"  # the stage of a promoted version


@dataclass(frozen=True)
class ModelVersion:
    """A version in the registry.

    Attributes:
        version: ``v1.2.0``.
        revision: commit whose ``dvc.lock`` lists its files.
    """

    name: str
    version: str
    revision: str
    stages: tuple[str, ...]
    created: datetime
    author: str

    @property
    def tag(self) -> str:
        """The git tag of the version."""
        return f"{self.name}@{self.version}"


def name_of_model(root: Path) -> str:
    """Return the model's name in the registry: that of the bundle under ``artifacts`` in ``dvc.yaml``."""
    path = root / "dvc.yaml"
    for name, artifact in ((parse_yaml(read_text(path), str(path)) or {}).get("artifacts") or {}).items():
        if artifact["path"] == str(BUNDLE):
            return str(name)
    raise CseError(f"{path}: no artifact has the path {BUNDLE}; add one, its name is the model's")


def models(root: Path, name: str) -> list[ModelVersion]:
    """Return all versions of a model, the newest first."""
    import gto.api
    from gto.exceptions import ArtifactNotFound
    from gto.versions import SemVer

    try:
        found: list[dict[str, Any]] = gto.api.show(
            str(root), name, registered_only=True, assignments_per_version=-1, versions_per_stage=-1
        )
    except ArtifactNotFound:
        return []
    last: dict[str, tuple[int, str]] = {}  # by stage: the last promotion, and which version it was
    for version in found:
        for stage in version["stages"]:
            number = max(_promotion(assignment["tag"]) for assignment in stage["assignments"])
            last[stage["stage"]] = max(last.get(stage["stage"], (0, "")), (number, version["version"]))
    return [
        ModelVersion(
            name,
            version["version"],
            version["commit_hexsha"],
            tuple(sorted(stage for stage, (_, holder) in last.items() if holder == version["version"])),
            version["created_at"],
            version["author"],
        )
        for version in sorted(found, key=lambda version: SemVer(version["version"]), reverse=True)
    ]


def find(root: Path, name: str, wanted: str | None = None) -> ModelVersion:
    """Return a version (``v1.2.0``) or the version in a stage (``production``); None: the newest."""
    known = models(root, name)
    if not known:
        raise CseError(f"{name}: no version registered yet; create one with `cse models promote`")
    if wanted is None:
        return known[0]
    for model in known:
        if wanted in (model.version, model.version.removeprefix("v"), model.tag, *model.stages):
            return model
    names = [text for model in known for text in (model.version, *model.stages)]
    raise CseError(f"{name}: no version or stage {wanted!r}{nearest(wanted, names)}; see `cse models list`")


def register(root: Path, name: str, revision: str, message: str = "", *, push: bool = False) -> ModelVersion:
    """Give a commit the next version, unless it already has one."""
    if push:
        fetch_tags(root)
    known = models(root, name)
    if not any(model.revision == revision for model in known):
        step: dict[str, Any] = {"bump_minor": True} if known else {"version": _FIRST}
        _gto("register", root, name, revision, message=message or None, **step)
    model = next(model for model in models(root, name) if model.revision == revision)
    if push:
        push_tags(root, model.tag)
    return model


def assign(root: Path, model: ModelVersion, stage: str, *, push: bool = False) -> str:
    """Put a version into a stage and return the tag; do not tag again if it is there already."""
    if stage not in model.stages:
        _gto("assign", root, model.name, stage=stage, version=model.version, force=True)
    tag = max(git(root, "tag", "--list", f"{model.name}#{stage}#*").splitlines(), key=_promotion)
    if push:
        push_tags(root, model.tag, tag)
    return tag


def judge_model(root: Path, model: ModelVersion, settings: Settings) -> Verdict:
    """Compare a version with the one in its stage; files of both come from DVC's cache or remote."""
    from dvc.repo import Repo

    from cse.stages.bank import judge

    held = next((one for one in models(root, model.name) if PRODUCTION in one.stages), None)

    def fetch(revision: str, outputs: Iterable[Path], folder: Path) -> Path:
        for output in outputs:
            (folder / output).parent.mkdir(parents=True, exist_ok=True)
            with dvc_errors(f"{output} of {revision[:12]}", "; `dvc pull` or a push from elsewhere"):
                Repo.get(str(root), str(output), out=str(folder / output), rev=revision)
        return folder

    with tempfile.TemporaryDirectory() as place:
        new, before = fetch(model.revision, (BUNDLE, CHECKPOINT, PREPARED), Path(place, "new")), None
        if held is not None and held.revision != model.revision:
            before = fetch(held.revision, (BUNDLE,), Path(place, "old")) / BUNDLE
        return judge(
            settings, bundle=new / BUNDLE, checkpoint=new / CHECKPOINT, prepared=new / PREPARED, promoted=before
        )


def scores_at(root: Path, revision: str) -> dict[str, Any]:
    """Return the scores that a commit holds: ``dev``, and the trained model's by task."""
    train, evaluation = (json_at(root, revision, METRICS / f"{file}.json") for file in ("train", "evaluation"))
    dev = dev_of(train)
    return ({} if dev is None else {"dev": dev.value}) | evaluation.get("trained", {})


def trained_on_at(root: Path, revision: str) -> str | None:
    """Return the rows that a commit's model was trained on, if recorded."""
    return json_at(root, revision, METRICS / "train.json").get("trained_on")


def push_tags(root: Path, *tags: str) -> None:
    """Push tags, and with them their commits, to ``origin``."""
    git(root, "push", "--quiet", "origin", *(f"refs/tags/{tag}" for tag in tags))


def fetch_tags(root: Path) -> None:
    """Fetch versions that others registered, so that the next number is free; do nothing without ``origin``."""
    if has_origin(root):
        git(root, "fetch", "--quiet", "--tags", "origin")


def _gto(function: Literal["register", "assign"], root: Path, *arguments: str, **options: Any) -> None:
    import gto.api
    from gto.exceptions import GTOException

    name, email = author(root)
    work = {"register": gto.api.register, "assign": gto.api.assign}[function]
    try:
        work(str(root), *arguments, **options, author=name, author_email=email)
    except GTOException as error:
        raise CseError(f"registry: {error_line(error)}") from None


def _promotion(tag: str) -> int:
    """Return the running number at the end of ``NAME#STAGE#3``."""
    number = tag.rpartition("#")[2]
    return int(number) if number.isdigit() else 0
