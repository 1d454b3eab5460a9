"""What a training of a study is, and depends on: its settings, and what its files hold."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.files import fingerprint
from cse.settings import Settings
from cse.settings.load import flatten
from cse.stages.prepare import files_of, measuring_files
from cse.study.measures import CXC_DEV
from cse.study.plan import BARE, Run
from cse.training.encoder import choose_device
from cse.training.ready import depends_on, groups_of

# of data: what scores are measured on, beside the content of files
_MEASURING = {"source", "dev_path", "dev", "evaluation_path", "task_path", "encoding", "score_range", "hold_out"}


def facts_of(run: Run, round_name: str, captions: Path) -> dict[str, Any]:
    """Return which training it is, and what it depends on, by dotted key: settings, and fingerprints of files.

    Args:
        run: a training, or the bare backbone, of which only the files count that measure it.
        captions: folder that may hold CxC's validation captions.
    """
    data = run.settings.data
    of_user = data.source == "files"
    measured = measuring_files(data) if of_user else []
    facts: dict[str, Any] = {
        "setting": run.setting,
        "seed": run.seed,
        "round": "" if run.setting == BARE else round_name,
        "the files that scores are measured on": _fingerprint((*measured, *captions.glob(CXC_DEV))),
    }
    read = run.settings
    if run.setting == BARE:
        read = Settings().model_copy(update={"backbone": read.backbone, "train": read.train})
    with suppress(CseError):  # the run says which model is missing
        facts |= depends_on(read) | {"device of measures": choose_device(run.settings.evaluation.device).type}
    if run.setting != BARE or data.hold_out:  # rows that are held out measure
        rows = sorted(set(files_of(data)) - set(measured)) if of_user else []
        facts["the files with training rows"] = _fingerprint(tuple(rows))
    if run.setting == BARE:
        measuring = set(type(data).model_fields) - {"max_rows", "more"} if data.hold_out else _MEASURING
        train = run.settings.train.model_dump(mode="json", include={"dev_measure"})
        settings = {"backbone": read.backbone.model_dump(mode="json"), "train": train}
        return facts | flatten(settings | {"data": data.model_dump(mode="json", include=measuring)})
    return flatten(groups_of(run.settings) | {"data": data.model_dump(mode="json")}) | facts


def _fingerprint(files: tuple[Path, ...]) -> str:
    return _of_files(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=64)  # a round asks for every training
def _of_files(files: tuple[tuple[Path, int], ...]) -> str:
    return fingerprint({}, (path for path, _ in files))
