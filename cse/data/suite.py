"""Everything the full evaluation reads: a SentEval folder and, beside it, CxC-STS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cse.data.cxc import CXC_FILE, CaptionPairs, read_cxc
from cse.data.evaluation import LAYOUT, read_senteval, read_stsb
from cse.data.scored import ScoredPairs
from cse.data.transfer import TransferTask, read_transfer
from cse.errors import CseError

STSB_SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class SuiteData:
    """What is there.

    Attributes:
        sts: similarity tasks.
        stsb: splits of STS-B, for retrieval (test) and the shape of the space (all).
        transfer: classification tasks.
        cxc: caption pairs, or None.
        missing: each absent part with the first file that is not there.
    """

    sts: list[ScoredPairs]
    stsb: dict[str, ScoredPairs]
    transfer: list[TransferTask]
    cxc: CaptionPairs | None
    missing: list[str]


def read_suite(senteval: Path, cxc: Path | None) -> SuiteData:
    """Read what a SentEval folder and a CxC file hold.

    Args:
        senteval: SentEval's ``downstream`` folder, or a folder that contains it.
        cxc: CSV of CxC-STS, or a folder that holds ``cxc_sts_test.csv``; None: without.

    Raises:
        CseError: nothing of SentEval there, or a file that is not as published.
    """
    if not senteval.is_dir():
        raise CseError(f"{senteval}: the full evaluation reads SentEval's downstream folder, and this is none")
    found = read_senteval(senteval, required=False)
    missing = [name for name in found.missing if not name.startswith("STS-B dev")]
    stsb = {}
    for split in STSB_SPLITS:
        try:
            stsb[split] = read_stsb(senteval, split)
        except FileNotFoundError as error:
            missing.append(f"STS-B {split} ({Path(error.filename).name})")
    transfer, absent = read_transfer(senteval)
    if not found.tasks and not stsb and not transfer:
        raise CseError(f"{senteval}: no evaluation data of SentEval here; expected {LAYOUT}, MR, CR, SUBJ and others")
    captions = None if cxc is None else read_cxc(cxc)
    if cxc is None:
        missing.append(f"CxC-STS ({CXC_FILE}; give it with --cxc)")
    return SuiteData(found.tasks, stsb, transfer, captions, missing + absent)
