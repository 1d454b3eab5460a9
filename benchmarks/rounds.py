"""Interleaved rounds: every contestant runs once a round, so that other load slows all alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """A ratio of two contestants: the median over the rounds, and the least and the most."""

    median: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each contestant measured in each round, for instance seconds; progress goes to stderr."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            found[name].append(run())
            print(f"round {number + 1} of {rounds}: {name}: {found[name][-1]:,.4g}", file=sys.stderr, flush=True)
    return found


def ratio(above: list[float], below: list[float]) -> Ratio:
    """Return ``above / below``, of neighbours in time."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))
