"""Map columns of the papers' tables to numbers in a record."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from cse.evaluation.record import RETRIEVAL_FILE, Record
from cse.settings.presets import AVERAGES, HYPERPARAMETER

_Figure = Callable[[Record], float | bool | None]
_HYPERPARAMETERS = {
    "batch_size": "train.batch_size",
    "learning_rate": "train.learning_rate",
    "epochs": "train.epochs",
    "prompt_length": "prompt.length",
    "cls_prompt": "prompt.cls",
    "masking_ratio": "objective.replaced_tokens.mask_share",
    "lambda": "objective.replaced_tokens.weight",
    "multi_task_mlm": "objective.masked_lm.weight",
}


def figure(metric: str, dataset: str) -> _Figure:
    """Return a function that reads a column's number from a record, or None if it was not measured.

    An average over some of the tasks is never read as the column ``Avg.``.
    """
    if metric == HYPERPARAMETER:
        return lambda record: _hyperparameter(record, dataset)
    if metric.startswith("cosine_similarity"):
        return lambda record: _by_letters(record.scores.get("near_identical", {}), dataset.removesuffix(" (correct)"))
    if metric == "rank_of_correct_answer":
        return lambda record: _rank(record, dataset)
    return lambda record: _number(record.scores, _path(metric, dataset))


def sts_average(record: Record) -> float | None:
    """Return the average over the seven STS tasks."""
    return _number(record.scores, ("Avg.", "all"))


def cxc_mean(record: Record) -> float | None:
    """Return the mean of CxC-STS."""
    return _number(record.scores, ("cxc", "mean"))


def task_value(task: str, measure: str) -> _Figure:
    """Return a function that reads a measure of one of the user's own tasks."""
    return lambda record: _number(record.scores, ("tasks", task, "values", measure))


def _path(metric: str, dataset: str) -> tuple[str, ...]:
    """Return the path of a number in ``SuiteResults.to_dict``."""
    average = dataset in AVERAGES
    if metric == "spearman_x100":
        return ("Avg.", "all") if average else ("sts", dataset, "all")
    if metric == "accuracy":
        return ("transfer", "Avg.") if average else ("transfer", "transfer", dataset, "accuracy")
    if metric.startswith("spearman_bootstrap"):
        return ("cxc", "std" if "std" in metric else "mean")
    if metric in ("alignment", "uniformity"):
        return ("space_test" if dataset == "STS-B test" else "space", metric)
    return ("retrieval", metric)


def _number(tree: Any, path: tuple[str, ...]) -> float | None:
    for name in path:
        if not isinstance(tree, dict) or name not in tree:
            return None
        tree = tree[name]
    return tree if isinstance(tree, int | float) else None


def _hyperparameter(record: Record, name: str) -> float | bool | None:
    tree = record.model.get("facts", {}).get("settings", {})
    if name not in _HYPERPARAMETERS:
        return None
    value = _number(tree, tuple(_HYPERPARAMETERS[name].split(".")))
    return value if value is None or name != "multi_task_mlm" else value > 0


def _rank(record: Record, dataset: str) -> float | None:
    """Return the rank of the answer named by the column: ``..., query "Q" -> "A"``."""
    quoted = re.findall(r'"([^"]*)"', dataset)
    if len(quoted) != 2:
        return None
    query, partner = map(_letters, quoted)
    rows = record.table(RETRIEVAL_FILE)
    ranks = (int(row["rank"]) for row in rows if (_letters(row["query"]), _letters(row["partner"])) == (query, partner))
    return next(ranks, None)


def _by_letters(values: dict[str, float], text: str) -> float | None:
    """Look up a sentence, ignoring punctuation: papers print it without SentEval's spaces."""
    return next((value for key, value in values.items() if _letters(key) == _letters(text)), None)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
