"""Store the full evaluation's data as Arrow files next to the prepared rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cse.data.cxc import CaptionPairs
from cse.data.store import PreparedData, open_pairs, read_table, write_pairs, write_table
from cse.data.suite import STSB_SPLITS, SuiteData
from cse.data.tasks.store import OWN_TASKS_FILE, open_tasks, write_tasks
from cse.data.transfer import Labelled, TransferTask

STSB_FILE, TRANSFER_FILE, CXC_FILE = "stsb.arrow", "transfer.arrow", "cxc.arrow"
_PARTS = ("train", "dev", "test")
_TRANSFER = pa.schema(
    [
        ("task", pa.string()),
        ("part", pa.string()),
        ("text", pa.string()),
        ("second", pa.string()),
        ("label", pa.int64()),
    ]
)
_CXC = pa.schema(
    [("sentence1", pa.string()), ("sentence2", pa.string()), ("score", pa.float64()), ("caption", pa.int64()),
     ("image", pa.int64())]
)  # fmt: skip


def write_suite(folder: Path, suite: SuiteData) -> None:
    """Write everything except the similarity tasks, which ``prepare`` always writes."""
    write_pairs(folder / STSB_FILE, suite.stsb.values())
    rows: list[tuple[Any, ...]] = []
    for task in suite.transfer:
        for name in _PARTS:
            part: Labelled | None = getattr(task, name)
            if part is not None:
                second: Sequence[str | None] = part.second or [None] * len(part)
                labels = part.label.tolist()
                rows += [(task.name, name, *row) for row in zip(part.texts, second, labels, strict=True)]
    write_table(folder / TRANSFER_FILE, _TRANSFER, rows)
    cxc = suite.cxc
    captions = [] if cxc is None else [getattr(cxc, name) for name in _CXC.names]
    write_table(folder / CXC_FILE, _CXC, zip(*captions, strict=True))
    write_tasks(folder / OWN_TASKS_FILE, suite.tasks)


def open_suite(data: PreparedData) -> SuiteData:
    """Read the data of the full evaluation.

    Raises:
        CseError: data prepared by an older version, or a truncated file.
    """
    splits = open_pairs(data.folder / STSB_FILE)
    stsb = {task.name.removeprefix("STS-B "): task for task in splits}
    tasks: dict[str, dict[str, Labelled]] = {}
    rows = read_table(data.folder / TRANSFER_FILE, _TRANSFER)
    for (name, part), group in groupby(rows, key=lambda row: row[:2]):
        _, _, texts, second, label = (list(column) for column in zip(*group, strict=True))
        pairs = None if second[0] is None else second
        tasks.setdefault(name, {})[part] = Labelled(texts, np.array(label), pairs)
    captions = list(zip(*read_table(data.folder / CXC_FILE, _CXC), strict=True))
    cxc = None
    if captions:
        first, other, score, caption, image = captions
        cxc = CaptionPairs(list(first), list(other), np.array(score), np.array(caption), np.array(image))
    return SuiteData(
        sts=data.tasks,
        stsb={split: stsb[split] for split in STSB_SPLITS if split in stsb},
        transfer=[TransferTask(name, **parts) for name, parts in tasks.items()],
        cxc=cxc,
        missing=data.report["evaluation"]["suite_missing"],
        tasks=open_tasks(data),
    )
