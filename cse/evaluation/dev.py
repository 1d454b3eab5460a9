"""The score that selects checkpoints, on whatever task the user gave for it."""

from __future__ import annotations

from cse.data.tasks.kinds import PROXY, ScoredPairs, Task
from cse.evaluation.dev_facts import SPEARMAN, DevScore
from cse.evaluation.sts import dev_score
from cse.evaluation.tasks.score import dev_measure, score_task
from cse.evaluation.vectors import TextEncoder


def score_dev(encoder: TextEncoder, task: Task, batch_size: int = 64, measure: str | None = None) -> DevScore:
    """Score an encoder on a dev task.

    Args:
        encoder: see ``TextEncoder``.
        task: scored pairs, or another task.
        batch_size: texts per forward pass.
        measure: one of the task's measures; None: its main measure.

    Raises:
        CseError: the task has no such measure.
        NotFinite: a text whose embedding is not finite.
        UndefinedScore: scored pairs whose gold scores or cosines are all equal, or fewer than two.
    """
    name = dev_measure(task, measure, "train.dev_measure")
    if isinstance(task, ScoredPairs):
        return DevScore(dev_score(encoder, task, batch_size), SPEARMAN)
    plain = name.removesuffix(PROXY)
    return DevScore(score_task(encoder, task, batch_size=batch_size, measures=(plain,)).values[plain], name)
