"""Records of fake encoders: real measures on made-up data, in a moment."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.suite import SuiteData
from cse.data.tasks.kinds import ScoredPairs, Splits
from cse.evaluation.record import Record, read_record, write_record
from cse.evaluation.sts import SEVEN_TASKS
from cse.evaluation.suite import evaluate_suite
from tests.evaluation.test_sts import FakeEncoder


class Words(FakeEncoder):
    """The sum of a random vector a word: pairs that share words are alike."""

    pooler = "mean"

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def vector(self, sentence):
        return sum(of_word(self.seed, word) for word in sentence.split())


@functools.cache
def of_word(seed: int, word: str) -> np.ndarray:
    return np.random.default_rng([seed, *word.encode()]).normal(size=8).astype(np.float32)


def make_task(name: str, rows: int = 40) -> ScoredPairs:
    """Pairs that share as many words as their score says, two with gold 5 first."""
    gold = np.random.default_rng([*name.encode()]).integers(0, 6, rows)
    gold[:2] = 5
    words = [[f"{name}{row}w{i}" for i in range(5)] for row in range(rows)]
    others = [[f"x{row}w{i}" for i in range(5)] for row in range(rows)]
    second = [" ".join(["so", *a[:n], *b[n:]]) for a, b, n in zip(words, others, gold, strict=True)]
    return ScoredPairs(name, [*map(" ".join, words)], second, gold.astype(float))


def make_data(tasks: tuple[str, ...] = SEVEN_TASKS) -> SuiteData:
    splits = {split: make_task(f"STS-B {split}") for split in ("train", "dev", "test")}
    return SuiteData([*map(make_task, tasks), Splits("STS-B", splits)])


def trained(seed: int, **settings: Any) -> dict[str, Any]:
    """What a checkpoint says of itself, as far as reports read it; ``train__epochs=2`` sets a setting."""
    tree: dict[str, Any] = {"prompt": {"length": 12, "cls": False}, "train": {"seed": seed, "learning_rate": 0.03}}
    for key, value in settings.items():
        group, name = key.split("__")
        tree[group][name] = value
    return {
        "kind": "checkpoint",
        "backbone": {"name": "models/tiny-bert"},
        "prompt": {"kind": "key_value", "length": 12, "shared": False},
        "parameters": "prompts",
        "facts": {
            "settings": tree,
            "data": {"source": "rows.csv", "view": "triplets", "rows": 7680},
            "parameters": {"trained": 55296},
            "steps": 60,
            "dev_spearman": 80.0 + seed,
        },
    }


BARE: dict[str, Any] = {"kind": "backbone", "backbone": {"name": "models/tiny-bert"}, "prompt": None}


def make_record(
    folder: Path,
    name: str,
    model: dict[str, Any],
    *,
    seed: int = 0,
    data: SuiteData | None = None,
    measures: tuple[str, ...] = ("sts", "retrieval", "space"),
) -> Record:
    """Measure a made-up encoder and write its record into ``folder / name``."""
    results = evaluate_suite(Words(seed), data or make_data(), measures=measures)
    (folder / name).mkdir(parents=True)
    write_record(folder / name, name, results, model=model, environment={"python": "3.11", "device": "cpu"})
    return read_record(folder / name)
