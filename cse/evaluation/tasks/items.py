"""Per-item values of task scores in one file, so that two records can be compared later."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cse.errors import CseError

ITEMS_FILE, STS_FILE = "tasks.npz", "sts.npz"
_NO_TIME = (1980, 1, 1, 0, 0, 0)  # so that equal scores give equal bytes


def write_items(path: Path, tasks: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the items of tasks as ``.npz``, one array per ``TASK/MEASURE``, float64; see ``Score.items``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, measures in tasks.items():
            for measure, items in measures.items():
                stream = io.BytesIO()
                np.lib.format.write_array(stream, np.asarray(items, np.float64), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}/{measure}.npy", _NO_TIME), stream.getvalue())


def read_items(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the items by task and measure, float64 ``(n,)``; none where there is no such file."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, np.ndarray]] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in archive.files:
                task, _, measure = key.rpartition("/")
                found.setdefault(task, {})[measure] = archive[key]
    except (ValueError, OSError, zipfile.BadZipFile):
        raise CseError(f"{path}: truncated or changed; evaluate the model again with --out") from None
    return found
