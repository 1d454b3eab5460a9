"""All comparisons of two models: on each of the user's own tasks and pairs, and on the seven STS tasks as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cse.errors import CseError
from cse.evaluation.comparison import Comparison, Outcomes, Statistic, compare, compare_average, holm
from cse.evaluation.dev_facts import SPEARMAN
from cse.evaluation.measures import average_name
from cse.evaluation.sts import SEVEN_TASKS
from cse.evaluation.tasks.score import AP, COSINE, F1, GOLD

Items = Mapping[str, Mapping[str, np.ndarray]]  # by task, then by measure, see ``Score.items``
_OF_PAIRS: dict[str, Statistic] = {SPEARMAN: "spearman", AP: "average_precision", F1: "best_f1"}
STS = "STS"
ONE_TRAINING = "this one training only"


@dataclass(frozen=True)
class Measured:
    """What one model scored, once per training seed.

    Attributes:
        tasks: items of the user's own tasks, one mapping per seed.
        sts: cosines and gold scores of the similarity tasks, one mapping per seed.
        measures: by own task, the names of its measures, the main one first.
        trained: whether another seed would have scored otherwise; the bare backbone has none.
        content: hashes of what was measured, one mapping per seed, see ``content_of_suite``; empty if not known.
    """

    tasks: Sequence[Items]
    sts: Sequence[Items]
    measures: Mapping[str, Sequence[str]]
    trained: bool = True
    content: Sequence[Mapping[str, str]] = ()

    def content_of(self, key: str) -> str:
        """Return the hash of a task such as ``tasks/NAME``; empty if not known."""
        found = sorted({each[key] for each in self.content if key in each})
        if len(found) > 1:
            name = key.partition("/")[2]
            raise CseError(f"{name}: seeds of one model were measured on different items; evaluate all of them again")
        return found[0] if found else ""


@dataclass(frozen=True)
class Compared:
    """One comparison with the task and the measure that it is about.

    Attributes:
        measure: such as ``nDCG@10``.
    """

    task: str
    measure: str
    main: bool
    comparison: Comparison

    def sentence(self) -> str:
        """Return the result in words, such as ``manual nDCG@10: 50.35 -> 52.10, better by 1.75 (...)``."""
        found = self.comparison
        words = {"better": f"better by {found.difference:.2f}", "worse": f"worse by {-found.difference:.2f}"}
        told = words.get(found.verdict, f"{found.verdict} ({found.difference:+.2f})")
        return f"{self.task} {self.measure}: {found.before:.2f} -> {found.after:.2f}, {told}; {_interval(found)}"

    def to_dict(self) -> dict[str, Any]:
        """Return names and numbers for JSON."""
        return {"task": self.task, "measure": self.measure, **self.comparison.to_dict()}


def compare_measured(before: Measured, after: Measured) -> list[Compared]:
    """Compare two models on every measure that both have, own tasks first.

    A measure that is no mean over items and not of pairs (V-measure, a threshold) has no comparison.
    """
    found = []
    for task, measures in after.measures.items():
        if task not in before.measures:
            continue
        for number, measure in enumerate(measures):
            pair = [_outcomes(model, task, measure) for model in (before, after)]
            if pair[0] is not None and pair[1] is not None:
                found.append(Compared(task, measure, number == 0, compare(pair[0], pair[1])))
    seeds = [*before.sts, *after.sts]
    names = [name for name in seeds[-1] if all(name in each for each in seeds)] if after.sts and before.sts else []
    tasks = {name: (_of_sts(before, name), _of_sts(after, name)) for name in names}
    own = [name for name in names if name not in SEVEN_TASKS]
    found += [Compared(name, SPEARMAN, True, compare(*tasks[name])) for name in own]
    seven = [name for name in names if name in SEVEN_TASKS]
    if seven:
        measure = f"{SPEARMAN}, {average_name(seven, SEVEN_TASKS)}" if len(seven) > 1 else f"{SPEARMAN}, {seven[0]}"
        found.append(Compared(STS, measure, True, compare_average([tasks[name] for name in seven])))
    return found


def corrected(found: Sequence[Compared]) -> list[Compared]:
    """Return comparisons as several questions at once: a verdict needs a p value that Holm's correction leaves."""
    p = holm([one.comparison.p for one in found])
    return [
        replace(one, comparison=replace(one.comparison, corrected=each)) for one, each in zip(found, p, strict=True)
    ]


def compared_rows(found: Sequence[Compared]) -> list[list[str]]:
    """Return a header and a row of text per comparison."""
    head = ["task", "measure", "verdict", "before", "after", "difference", "95 % interval", "p", "items"]
    return [head, *([*_row(one)] for one in found)]


def _row(one: Compared) -> Sequence[str]:
    found = one.comparison
    numbers = (f"{found.before:.2f}", f"{found.after:.2f}", f"{found.difference:+.2f}")
    interval = f"{found.low:+.2f} to {found.high:+.2f}"
    verdict = f"{found.verdict}, {ONE_TRAINING}" if found.one_training else found.verdict
    return (one.task, one.measure, verdict, *numbers, interval, f"{found.p:.3f}", f"{found.items:,}")


def _interval(found: Comparison) -> str:
    seeds = f", {max(found.seeds)} seeds" if max(found.seeds) > 1 else ""
    alone = f"; holds for {ONE_TRAINING}" if found.one_training else ""
    corrected = "" if found.corrected is None else f" ({found.corrected:.3f} corrected)"
    return (
        f"95 % interval {found.low:+.2f} to {found.high:+.2f}, p {found.p:.3f}{corrected}, {found.items:,} items"
        f"{seeds}{alone}"
    )


def _outcomes(model: Measured, task: str, measure: str) -> Outcomes | None:
    items = [seed[task] for seed in model.tasks if task in seed]
    if not items:
        return None
    content = model.content_of(f"tasks/{task}")
    if measure in items[0]:
        return Outcomes(np.stack([each[measure] for each in items]) / 100, trained=model.trained, content=content)
    if measure in _OF_PAIRS and COSINE in items[0]:
        cosine_SN = np.stack([each[COSINE] for each in items])
        return Outcomes(cosine_SN, items[0][GOLD], _OF_PAIRS[measure], model.trained, content)
    return None


def _of_sts(model: Measured, task: str) -> Outcomes:
    content = model.content_of(f"sts/{task}")
    cosine_SN = np.stack([seed[task][COSINE] for seed in model.sts])
    return Outcomes(cosine_SN, model.sts[0][task][GOLD], "spearman", model.trained, content)
