"""The full evaluation of one encoder; each sentence is encoded once for all measures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from cse.data.suite import SuiteData
from cse.data.tasks.kinds import (
    TRANSFER_TASKS,
    CaptionPairs,
    ScoredPairs,
    Splits,
    Task,
    TransferTask,
    content_of,
    sentences_of,
)  # fmt: skip
from cse.errors import CseError, nearest
from cse.evaluation.linear import FULL, Classifier
from cse.evaluation.measures import Averaged, Score, TextEncoder, Vectors
from cse.evaluation.retrieval import EXAMPLE, score_retrieval
from cse.evaluation.score import score_task
from cse.evaluation.space import Density, densities, drawn_task, score_space
from cse.evaluation.sts import score_cxc, score_sts
from cse.evaluation.transfer import score_transfer

MEASURES = ("sts", "cxc", "transfer", "retrieval", "space", "tasks")
_READS: dict[str, type] = {
    "sts": ScoredPairs, "cxc": CaptionPairs, "transfer": TransferTask, "retrieval": Splits, "space": Splits,
}  # fmt: skip
_SPACE = "alignment and uniformity"
_CALLED = {"sts": "STS", "cxc": "CxC-STS", "space": _SPACE, "space_test": f"{_SPACE} of STS-B test"}
# measures that miss a part of the data where it is not there; other parts are similarity tasks
_MISSED_BY = {
    "CxC-STS": {"cxc"},
    **{name: {"transfer"} for name in TRANSFER_TASKS},
    "STS-B train": {"space"},
    "STS-B dev": {"space"},
    "STS-B splits": {"retrieval", "space"},
    "STS-B": {"sts", "retrieval", "space"},
}


@dataclass(frozen=True)
class SuiteResults:
    """Scores of one encoder; None if the data were missing or the measure was not requested.

    Attributes:
        sts, cxc, transfer, retrieval: one measure each.
        space: alignment and uniformity of all splits of STS-B.
        space_test: the same for STS-B test alone, as in D2CSE's table 5.
        drawn_task, densities: of which pairs the cosines are drawn, and their curves; empty without scored pairs.
        pooling: the encoder's pooling, if known.
        missing: what could not be measured, and why.
        content: of what they and the similarity tasks were measured on, see ``content_of_suite``.
        reads: the encoder's ``max_length`` and task ``texts``, as far as known.
    """

    sts: Averaged | None = None
    cxc: Score | None = None
    transfer: Averaged | None = None
    retrieval: Score | None = None
    space: Score | None = None
    space_test: Score | None = None
    drawn_task: str = ""
    densities: list[Density] = field(default_factory=list)
    pooling: str | None = None
    missing: list[str] = field(default_factory=list)
    tasks: dict[str, Score] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    reads: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return nested numbers and settings for JSON; ``missing`` lists what could not be measured."""
        tree: dict[str, Any] = {} if self.sts is None else self.sts.to_dict("sts")
        if self.transfer is not None:
            tree["transfer"] = self.transfer.to_dict("transfer")
        single = {"cxc": self.cxc, "retrieval": self.retrieval, "space": self.space, "space_test": self.space_test}
        tree |= {name: score.to_dict() for name, score in single.items() if score is not None}
        own = {
            name: {**score.facts, "values": score.values, "setting": score.setting}
            for name, score in self.tasks.items()
        }
        facts = {"pooling": self.pooling, "reads": self.reads, "tasks": own}
        return tree | {name: value for name, value in (facts | {"missing": self.missing}).items() if value}


def evaluate_suite(
    encoder: TextEncoder,
    data: SuiteData,
    *,
    batch_size: int | None = None,
    progress: bool = False,
    classifier: Classifier = FULL,
    device: torch.device | None = None,
    measures: Collection[str] = MEASURES,
) -> SuiteResults:
    """Measure an encoder on the available data.

    Args:
        device: where classifiers are trained; None: the CPU.
        measures: which of ``MEASURES`` to compute; only their sentences are encoded.
    """
    data = _only(data, measures)
    if not data.test and not data.own:
        gaps = f": without {', '.join(data.missing)}" if data.missing else ""
        raise CseError(f"evaluation: no data for {', '.join(measures)}{gaps}")
    splits, test, captions = list(data.stsb.values()), data.stsb.get("test"), data.cxc
    example = EXAMPLE if splits else ()
    vectors = Vectors(encoder, [*sentences_of(data.test), *example], batch_size, progress)
    missing = list(data.missing)
    alone = len(data.own) + len(set(measures) - {"tasks"}) < 2

    def score(name: str, compute: Callable[[], Any]) -> Any:
        """Return a score; if it is undefined for this encoder, the others still count."""
        try:
            return compute()
        except CseError as error:
            if alone:
                raise
            missing.append(f"{_CALLED.get(name, name)} ({error})")
            return None

    one = partial(score_task, encoder, batch_size=batch_size, progress=progress)
    own = {task.name: score(task.name, partial(one, task)) for task in data.own}
    scores: dict[str, Callable[[], Any]] = {}
    if data.sts:
        scores["sts"] = lambda: score_sts(vectors, data.sts)
    if captions is not None:
        scores["cxc"] = lambda: score_cxc(vectors, captions)
    if data.transfer:
        scores["transfer"] = lambda: score_transfer(
            vectors, data.transfer, classifier, device=device, progress=progress
        )
    if test is not None and "retrieval" in measures:
        scores["retrieval"] = lambda: score_retrieval(vectors, test)
    if splits and "space" in measures:
        scores["space"] = lambda: score_space(vectors, splits)
    if test is not None and "space" in measures:
        scores["space_test"] = lambda: score_space(vectors, [test])
    drawn = drawn_task(data.sts or ([] if test is None else [test]))
    return SuiteResults(
        **{name: score(name, compute) for name, compute in scores.items()},
        tasks={name: score for name, score in own.items() if score is not None},
        drawn_task="" if drawn is None else drawn.name,
        densities=[] if drawn is None else densities(vectors.cosines(drawn.sentence1, drawn.sentence2), drawn.score),
        pooling=getattr(encoder, "pooler", None),
        missing=missing,
        content=content_of_suite(data),
        reads={name: getattr(encoder, name) for name in ("max_length", "texts") if getattr(encoder, name, None)},
    )


def content_of_suite(data: SuiteData) -> dict[str, str]:
    """Return the hash of each similarity task and of each of the user's own tasks, see ``content_of``.

    Keys are ``sts/NAME`` and ``tasks/NAME``.
    """
    kinds: dict[str, Sequence[Task]] = {"sts": data.sts, "tasks": data.own}
    return {f"{kind}/{task.name}": content_of(task) for kind, tasks in kinds.items() for task in tasks}


def measures_from(text: str) -> tuple[str, ...]:
    """Return the measures that a user named: ``full``, or a comma-separated list from ``MEASURES``."""
    if text == "full":
        return MEASURES
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in MEASURES:
            raise CseError(f"suite {name!r}: choose full, or some of {','.join(MEASURES)}{nearest(name, MEASURES)}")
    return tuple(dict.fromkeys(names))


def _only(data: SuiteData, measures: Collection[str]) -> SuiteData:
    """Drop data, and gaps in it, that no measure reads."""
    kinds = {_READS.get(measure) for measure in measures}
    return SuiteData(
        test=[task for task in data.test if type(task) in kinds],
        own=data.own if "tasks" in measures else [],
        missing=[gap for gap in data.missing if _MISSED_BY.get(gap.partition(" (")[0], {"sts"}).intersection(measures)],
    )
