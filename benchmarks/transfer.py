"""Transfer tasks: all classifiers as one batch against one at a time, on the same rows, in one run.

    python -m benchmarks.transfer

Rows are random, with MR's shape and a similar overlap of classes. The loop trains a few of the batch's classifiers one
by one with torch's own layer and optimiser; its total is their mean time multiplied by the number of classifiers. Batch
and loop alternate; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.model_selection import StratifiedKFold

from cse.evaluation.linear import FULL, Problem, fit
from tests.evaluation.sequential import train_one


def main() -> None:
    """Measure and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_662)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sampled", type=int, default=8, help="classifiers to train one by one")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, args.rows)
    features = rng.normal(size=(args.rows, args.width)).astype(np.float32) / args.width**0.5
    features += 0.06 * np.where(label[:, None] == 1, 1, -1) * rng.normal(size=args.width) / args.width**0.5 * 10
    cross = StratifiedKFold(FULL.folds, shuffle=True, random_state=FULL.seed)
    problems = []
    for learn, _ in cross.split(features, label):
        inner = cross.split(features[learn], label[learn])
        problems += [Problem(learn[a], learn[b], FULL.l2) for a, b in inner]
    count = len(problems) * len(FULL.l2)
    clock = time.perf_counter()
    fitted = fit(features, label, problems, FULL)
    stack = time.perf_counter() - clock
    chosen = rng.choice(count, args.sampled, replace=False)
    clock = time.perf_counter()
    differences = []
    for number in chosen:
        problem, r = problems[number // len(FULL.l2)], number % len(FULL.l2)
        _, best = train_one(features, label, problem.train, problem.dev, FULL.l2[r], FULL)
        differences.append(abs(best - fitted[number // len(FULL.l2)].dev_accuracy[r]))
    loop = (time.perf_counter() - clock) / args.sampled * count
    print(f"{count} classifiers on {args.rows:,} rows of {args.width}: batch {stack:.0f} s, loop {loop:.0f} s")
    print(f"ratio {loop / stack:.1f}, largest difference of a validation accuracy {100 * max(differences):.2f} points")


if __name__ == "__main__":
    main()
