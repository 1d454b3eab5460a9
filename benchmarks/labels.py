"""What the names of labels are worth to a classifier of few rows, on a bare backbone.

    python -m benchmarks.labels FOLDER     # labelled texts, train.* and test.*

For each number of rows a label, drawn anew for each seed: a logistic regression of scikit-learn on the rows alone, and
the classifier that a bundle gets, with its calibration error on the test rows and the share that it calls unknown. The
interval is Student's over the draws. Each text is encoded once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from benchmarks.harness import facts, parser_of, run, say, table
from cse.data.shape import name_in_words
from cse.data.tasks.kinds import LabelledTexts
from cse.data.tasks.read import read_task
from cse.errors import CseError
from cse.evaluation.classifier import Rows, calibration_error, fit_classifier
from cse.stages.open_model import open_model


def drawn(task: LabelledTexts, count: int, seed: int) -> NDArray[np.int64]:
    """Return the places of up to ``count`` reference rows of each label."""
    random, label = np.random.default_rng(seed), np.array(task.reference_label)
    rows = [np.flatnonzero(label == one) for one in sorted(set(task.reference_label))]
    return np.concatenate([random.permutation(each)[:count] for each in rows]) if count else np.empty(0, np.int64)


def interval(values: Sequence[float]) -> str:
    """Return the mean of percentages, and half the width of its 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
    return f"{np.mean(values):.1f} ± {half:.1f}"


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure every number of rows, and return the figures."""
    task = read_task(asked.folder)
    if not isinstance(task, LabelledTexts):
        raise CseError(f"{asked.folder}: no labelled texts; name a folder with train.* and test.*")
    encoder, labels = open_model(asked.backbone), sorted(set(task.reference_label))
    of_draw = {(count, seed): drawn(task, count, seed) for count in asked.rows for seed in range(asked.seeds)}
    texts = [
        *task.test,
        *map(name_in_words, labels),
        *(task.reference[row] for rows in of_draw.values() for row in rows),
    ]
    texts = list(dict.fromkeys(texts))
    say(f"encoding {len(texts):,} texts")
    vectors = np.asarray(encoder.encode(texts, normalize=True, show_progress_bar=True))
    place = {text: number for number, text in enumerate(texts)}

    def embedded(texts: Iterable[str]) -> NDArray[np.float32]:
        return vectors[[place[text] for text in texts]]

    test, named = embedded(task.test), embedded(map(name_in_words, labels))
    names, own, rows, every = Rows(named, labels), np.array(task.test_label), [], {}
    for count in asked.rows:
        found: dict[str, list[float]] = {name: [] for name in ("rows alone", "bundle", "calibration", "unknown")}
        for seed in range(asked.seeds):
            label = [task.reference_label[row] for row in of_draw[count, seed]]
            known = embedded(task.reference[row] for row in of_draw[count, seed])
            if count:
                plain = LogisticRegression(C=10, max_iter=1000).fit(known, label)
                found["rows alone"].append(100 * plain.score(test, own))
            classifier = fit_classifier(Rows(known, label), names)
            chance = classifier.probabilities(test)
            right = np.array(labels)[chance.argmax(axis=1)] == own
            found["bundle"].append(100 * right.mean())
            found["calibration"].append(100 * calibration_error(chance.max(axis=1), right))
            found["unknown"].append(100 * (chance.max(axis=1) < classifier.facts.threshold).mean())
            say(f"{count} rows a label, draw {seed}: {found['bundle'][-1]:.2f}")
        every[count] = found
        rows.append((str(count), *(interval(values) if values else "-" for values in found.values())))
    head = ("rows a label", "regression on rows", "with names", "calibration error", "told as unknown")
    return facts("cpu") | {"values": every, "table": table(head, rows)}


def main() -> int:
    """Read the command line and measure."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="labelled texts")
    parser.add_argument(
        "--backbone", default="sentence-transformers/all-MiniLM-L6-v2", help="folder or hub id, or a bundle"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[0, 1, 3, 5, 10, 20], help="rows a label")
    parser.add_argument("--seeds", type=int, default=4, help="draws")
    asked = parser.parse_args()
    return run("labels", lambda: measure(asked))


if __name__ == "__main__":
    sys.exit(main())
