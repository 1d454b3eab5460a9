"""The full evaluation of one encoder: every sentence is encoded once, then every measure reads its vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from cse.data.suite import SuiteData
from cse.errors import CseError
from cse.evaluation.cxc import DEFAULT, Bootstrap, CxcScore, score_cxc
from cse.evaluation.linear import FULL, Classifier
from cse.evaluation.retrieval import RetrievalScore, score_retrieval
from cse.evaluation.space import SpaceScore, score_space
from cse.evaluation.sts import StsResults, score_sts, sentences_of
from cse.evaluation.transfer import TransferResults, score_transfer, sentences_of_transfer
from cse.evaluation.vectors import Encoder, Vectors


@dataclass(frozen=True)
class SuiteResults:
    """Scores of one encoder; None where the data were missing."""

    sts: StsResults | None
    cxc: CxcScore | None
    transfer: TransferResults | None
    retrieval: RetrievalScore | None
    space: SpaceScore | None
    missing: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return nested numbers and settings for JSON; what could not be measured is named under ``missing``."""
        tree: dict[str, Any] = {} if self.sts is None else self.sts.to_dict()
        if self.transfer is not None:
            tree["transfer"] = self.transfer.to_dict()
        for name in ("cxc", "retrieval", "space"):
            score = getattr(self, name)
            if score is not None:
                tree[name] = score.to_dict()
        return tree | ({"missing": self.missing} if self.missing else {})


def evaluate_suite(
    encoder: Encoder,
    data: SuiteData,
    *,
    batch_size: int = 64,
    progress: bool = False,
    classifier: Classifier = FULL,
    bootstrap: Bootstrap = DEFAULT,
    dedup: bool = True,
    device: torch.device | None = None,
    advance: Callable[[str, int, int], object] | None = None,
) -> SuiteResults:
    """Measure an encoder on whatever data are there.

    Args:
        encoder: see ``Encoder``.
        data: from ``read_suite``.
        batch_size: sentences per forward pass.
        progress: whether the encoder shows its progress bar.
        classifier: for the transfer tasks.
        bootstrap: for CxC-STS.
        dedup: whether retrieval looks among distinct sentences.
        device: where classifiers are trained; None: the CPU.
        advance: see ``score_transfer``.

    Raises:
        CseError: a sentence whose embedding is not finite. What a single measure raises stands under ``missing``.
    """
    vectors = Vectors(encoder, _sentences(data), batch_size, progress)
    splits = list(data.stsb.values())
    missing = list(data.missing)

    def measure(name: str, there: object, score: Callable[[], Any]) -> Any:
        """Take a measure; one that does not exist for this encoder does not cost the others."""
        if not there:
            return None
        try:
            return score()
        except CseError as error:
            missing.append(f"{name} ({error})")
            return None

    cxc = data.cxc
    return SuiteResults(
        sts=measure("STS", data.sts, lambda: score_sts(vectors, data.sts)),
        cxc=measure("CxC-STS", cxc, lambda: score_cxc(vectors, cxc, bootstrap) if cxc else None),
        transfer=measure(
            "transfer",
            data.transfer,
            lambda: score_transfer(vectors, data.transfer, classifier, device=device, advance=advance),
        ),
        retrieval=measure(
            "retrieval", "test" in data.stsb, lambda: score_retrieval(vectors, data.stsb["test"], dedup=dedup)
        ),
        space=measure("alignment and uniformity", splits, lambda: score_space(vectors, splits)),
        missing=missing,
    )


def _sentences(data: SuiteData) -> Iterator[str]:
    yield from sentences_of(data.sts)
    yield from sentences_of(list(data.stsb.values()))
    yield from sentences_of_transfer(data.transfer)
    if data.cxc is not None:
        yield from data.cxc.sentence1
        yield from data.cxc.sentence2
