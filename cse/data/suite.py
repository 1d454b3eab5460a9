"""Data of an evaluation: a SentEval folder, CxC-STS, and the user's own tasks; prepared or read where they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cse.data.cxc import CXC_FILE, read_cxc
from cse.data.evaluation import LAYOUT, EvaluationData, read_senteval, read_stsb
from cse.data.store import PreparedData
from cse.data.tasks.kinds import TRANSFER_TASKS, CaptionPairs, ScoredPairs, Splits, Task, TransferTask, of_kind
from cse.data.tasks.read import check_names
from cse.data.tasks.store import OWN, TEST, open_tasks
from cse.data.transfer import read_transfer
from cse.errors import CseError

STSB_SPLITS = ("train", "dev", "test")
_CXC_NAME = "CxC-STS"
NO_CAPTIONS = f"{_CXC_NAME} ({CXC_FILE}; give it with --cxc or data.cxc_path)"


@dataclass(frozen=True)
class SuiteData:
    """Data of an evaluation.

    Attributes:
        test: what is measured as in the papers: similarity tasks (SentEval's or the user's), splits of STS-B,
            classification tasks, caption pairs.
        own: the user's own tasks, of any kind, measured one by one.
        missing: absent parts, each with its first missing file.
    """

    test: list[Task] = field(default_factory=list)
    own: list[Task] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def sts(self) -> list[ScoredPairs]:
        """The similarity tasks."""
        return of_kind(self.test, ScoredPairs)

    @property
    def stsb(self) -> dict[str, ScoredPairs]:
        """Splits of STS-B, for retrieval (test) and the shape of the space (all)."""
        return next((task.splits for task in of_kind(self.test, Splits)), {})

    @property
    def transfer(self) -> list[TransferTask]:
        """The classification tasks."""
        return of_kind(self.test, TransferTask)

    @property
    def cxc(self) -> CaptionPairs | None:
        """The caption pairs."""
        return next(iter(of_kind(self.test, CaptionPairs)), None)

    def with_captions(self, path: Path) -> SuiteData:
        """Return a copy with CxC-STS read from a CSV, see ``read_cxc``."""
        gaps = [gap for gap in self.missing if not gap.startswith(_CXC_NAME)]
        others = [task for task in self.test if not isinstance(task, CaptionPairs)]
        return dataclasses.replace(self, test=[*others, read_cxc(path)], missing=gaps)

    def with_tasks(self, tasks: Sequence[Task]) -> SuiteData:
        """Return a copy with more of the user's own tasks.

        Raises:
            CseError: two tasks of one name.
        """
        found = [*self.own, *tasks]
        check_names(found)
        return dataclasses.replace(self, own=found)


def open_suite(data: PreparedData) -> SuiteData:
    """Return the prepared data of an evaluation.

    Raises:
        CseError: see ``open_tasks``.
    """
    missing = data.report["evaluation"]["suite_missing"]
    return SuiteData(open_tasks(data, TEST), open_tasks(data, OWN), missing)


def read_suite(senteval: Path, cxc: Path | None) -> SuiteData:
    """Read the contents of a SentEval folder and a CxC file.

    Args:
        senteval: SentEval's ``downstream`` folder, or a folder that contains it.
        cxc: CSV of CxC-STS, or a folder that holds ``cxc_sts_test.csv``; None: skip CxC-STS.

    Raises:
        CseError: no SentEval data, or a file that differs from the published one.
    """
    if not senteval.is_dir():
        raise CseError(f"{senteval}: not a folder; the full evaluation needs SentEval's downstream folder")
    suite = complete(senteval, read_senteval(senteval, required=False))
    if not suite.test:
        raise CseError(f"{senteval}: no SentEval evaluation data here; expected {LAYOUT}, MR, CR, SUBJ and others")
    return suite if cxc is None else suite.with_captions(cxc)


def complete(senteval: Path, found: EvaluationData) -> SuiteData:
    """Read the rest of a SentEval folder, besides the similarity tasks ``found`` in it.

    Raises:
        CseError: a file differs from the published one.
    """
    missing = [name for name in found.missing if not name.startswith("STS-B dev")]
    splits = {}
    for split in STSB_SPLITS:
        try:
            splits[split] = dataclasses.replace(read_stsb(senteval, split), name=f"STS-B {split}")
        except FileNotFoundError as error:
            if split != "test":  # the test split is a similarity task and already listed
                missing.append(f"STS-B {split} ({Path(error.filename).name})")
    transfer, absent = read_transfer(senteval)
    stsb = [Splits("STS-B", splits)] if splits else []
    return SuiteData([*found.tasks, *stsb, *transfer], missing=[*missing, *absent, NO_CAPTIONS])


def only_pairs(tasks: list[ScoredPairs]) -> SuiteData:
    """Return the data for a user with scored pairs but without SentEval."""
    absent = [f"{name} (no SentEval folder)" for name in ("STS-B splits", *TRANSFER_TASKS)]
    return SuiteData([*tasks], missing=[*absent, NO_CAPTIONS])
