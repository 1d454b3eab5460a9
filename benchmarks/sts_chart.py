"""Draw STS scores of several models as one chart (SVG), from ``data/metrics/evaluation.json`` of their runs.

    python -m benchmarks.sts_chart docs/sts.svg "frozen=scores.json:backbone" "prompts=scores.json:trained"

From a file with several models it takes the first, or the one named after a colon.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

# Okabe and Ito's colours, distinguishable with any colour vision
COLOURS = ["#999999", "#0072B2", "#E69F00", "#009E73"]


def read_scores(source: str) -> dict[str, float]:
    """Return task to score from ``file.json`` or ``file.json:model``; the average comes last."""
    path, _, model = source.partition(":")
    results = json.loads(Path(path).read_text(encoding="utf-8"))
    result = results[model] if model else next(iter(results.values()))
    return {name: score for name, score in result.items() if not name.endswith("mean)")}


def draw(models: dict[str, dict[str, float]], out: Path) -> None:
    """Draw grouped bars, one group per task, and write the figure."""
    tasks = list(next(iter(models.values())))
    width = 0.8 / len(models)
    plt.rcParams["svg.hashsalt"] = "cse"  # deterministic file
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    for number, (name, scores) in enumerate(models.items()):
        places = np.arange(len(tasks)) + (number - (len(models) - 1) / 2) * width
        values = [scores[task] for task in tasks]
        bars = axes.bar(places, values, width * 0.92, label=name, color=COLOURS[number % len(COLOURS)])
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
    lowest = min(score for scores in models.values() for score in scores.values())
    axes.set_ylim(10 * np.floor((lowest - 5) / 10), 92)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_ylabel("Spearman * 100")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(ncols=len(models), frameon=False, loc="upper left", fontsize=9)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150)


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE")
    options = parser.parse_args()
    pairs = (model.partition("=")[::2] for model in options.models)
    draw({name: read_scores(source) for name, source in pairs}, options.out)


if __name__ == "__main__":
    main()
