"""Data of the full evaluation: a SentEval folder and CxC-STS."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cse.data.cxc import CXC_FILE, CaptionPairs, read_cxc
from cse.data.evaluation import LAYOUT, EvaluationData, read_senteval, read_stsb
from cse.data.scored import ScoredPairs
from cse.data.tasks.kinds import Task
from cse.data.tasks.read import check_names
from cse.data.transfer import TRANSFER_TASKS, TransferTask, read_transfer
from cse.errors import CseError

STSB_SPLITS = ("train", "dev", "test")
_CXC_NAME = "CxC-STS"
NO_CAPTIONS = f"{_CXC_NAME} ({CXC_FILE}; give it with --cxc or data.cxc_path)"


@dataclass(frozen=True)
class SuiteData:
    """Data of the full evaluation.

    Attributes:
        sts: similarity tasks, SentEval's or the user's own.
        stsb: splits of STS-B, for retrieval (test) and the shape of the space (all).
        transfer: classification tasks.
        cxc: caption pairs, or None.
        missing: absent parts, each with its first missing file.
        tasks: the user's own tasks.
    """

    sts: list[ScoredPairs]
    stsb: dict[str, ScoredPairs]
    transfer: list[TransferTask]
    cxc: CaptionPairs | None
    missing: list[str]
    tasks: list[Task] = field(default_factory=list)

    def with_captions(self, path: Path) -> SuiteData:
        """Return a copy with CxC-STS read from a CSV, see ``read_cxc``."""
        gaps = [gap for gap in self.missing if not gap.startswith(_CXC_NAME)]
        return dataclasses.replace(self, cxc=read_cxc(path), missing=gaps)

    def with_tasks(self, tasks: Sequence[Task]) -> SuiteData:
        """Return a copy with more of the user's own tasks.

        Raises:
            CseError: two tasks of one name.
        """
        found = [*self.tasks, *tasks]
        check_names(found)
        return dataclasses.replace(self, tasks=found)


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
    if not suite.sts and not suite.stsb and not suite.transfer:
        raise CseError(f"{senteval}: no SentEval evaluation data here; expected {LAYOUT}, MR, CR, SUBJ and others")
    return suite if cxc is None else suite.with_captions(cxc)


def complete(senteval: Path, found: EvaluationData) -> SuiteData:
    """Read the rest of a SentEval folder, besides the similarity tasks ``found`` in it.

    Raises:
        CseError: a file differs from the published one.
    """
    missing = [name for name in found.missing if not name.startswith("STS-B dev")]
    stsb = {}
    for split in STSB_SPLITS:
        try:
            stsb[split] = dataclasses.replace(read_stsb(senteval, split), name=f"STS-B {split}")
        except FileNotFoundError as error:
            if split != "test":  # the test split is a similarity task and already listed
                missing.append(f"STS-B {split} ({Path(error.filename).name})")
    transfer, absent = read_transfer(senteval)
    return SuiteData(found.tasks, stsb, transfer, None, [*missing, *absent, NO_CAPTIONS])


def only_pairs(tasks: list[ScoredPairs]) -> SuiteData:
    """Return the data for a user with scored pairs but without SentEval."""
    absent = [f"{name} (no SentEval folder)" for name in ("STS-B splits", *TRANSFER_TASKS)]
    return SuiteData(tasks, {}, [], None, [*absent, NO_CAPTIONS])
