"""What a training of a study depends on: its settings, and what its files hold."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.files import fingerprint
from cse.settings import Settings
from cse.settings.load import flatten
from cse.stages.build.teachers import teachers_content
from cse.stages.prepare import files_of, measuring_files
from cse.stages.training import groups_of
from cse.study.ledger import RunRow
from cse.study.measures import CXC_DEV
from cse.study.plan import BARE, Run

_FILES = {
    "files.measured": "the files that scores are measured on",
    "files.trained": "the files with training rows",
    "files.teachers": "the teachers of its distillation",
}


def facts_of(run: Run, captions: Path) -> dict[str, Any]:
    """Return what a training depends on, by dotted key: settings, and fingerprints of files.

    Args:
        run: a training, or the bare backbone, of which only the files count that measure it.
        captions: folder that may hold CxC's validation captions.
    """
    data = run.settings.data
    of_user = data.source == "files"
    measured = measuring_files(data) if of_user else []
    facts = {"files.measured": _fingerprint((*measured, *captions.glob(CXC_DEV)))}
    if run.setting == BARE:
        return facts | flatten({"backbone": run.settings.backbone.model_dump(mode="json")})
    rows = sorted(set(files_of(data)) - set(measured)) if of_user else []
    settings = groups_of(run.settings) | {"data": data.model_dump(mode="json")}
    return flatten(settings) | facts | {"files.trained": _fingerprint(tuple(rows))} | _teachers(run.settings)


def check_unchanged(run: Run, row: RunRow, captions: Path, folder: Path) -> None:
    """Refuse a row of other settings or files than those of the run; its scores would stand beside those of others.

    Raises:
        CseError: what changed.
    """
    now = facts_of(run, captions)
    # keys that either side lacks came or went with a version of the project
    changed = [key for key, value in row.settings.items() if key in now and now[key] != value]
    if not changed:
        return
    key, setting = changed[0], "the bare backbone" if run.setting == BARE else f"setting {run.setting}"
    if key in _FILES:
        raise CseError(f"{setting}: {_FILES[key]} changed since; give the study another --out, or delete {folder}")
    raise CseError(
        f"{setting}: {key} was {row.settings[key]} when it was trained and is {now[key]} now; "
        f"give the new one another name, or delete {folder}"
    )


def _teachers(settings: Settings) -> dict[str, str]:
    distillation = settings.objective.over(settings.data.more_terms).distillation
    if not distillation.reads_folder:
        return {}
    try:
        return {"files.teachers": teachers_content(Path(distillation.teacher_folder))}
    except CseError:  # the training says which one is missing
        return {}


def _fingerprint(files: tuple[Path, ...]) -> str:
    return _of_files(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=64)  # a round asks for every training
def _of_files(files: tuple[tuple[Path, int], ...]) -> str:
    return fingerprint({}, (path for path, _ in files))
