"""Draw what each step of an adaptation reached on held-out rows, and after how many minutes, as a chart (SVG).

python -m benchmarks.ladder_chart docs/labels.svg data/adapt
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt

from benchmarks.sts_chart import COLOURS
from cse.adapt.ladder import IN_WORDS, ORDER, shares_backbone

SHARED, OWN = COLOURS[1], COLOURS[2]


def read_steps(folder: Path) -> dict[str, tuple[float, float, int]]:
    """Return each kind of model that was trained: mean dev score times 100, minutes until it was there, and seeds."""
    steps = json.loads((folder / "journal.json").read_text(encoding="utf-8"))["steps"]
    scores, passed, reached = defaultdict[str, list[float]](list), 0.0, dict[str, float]()
    for name, step in steps.items():
        passed += step["seconds"]
        kind = name.removeprefix("train ").partition("-")[0]
        if name.startswith("train ") and kind in ORDER:
            scores[kind].append(step["result"])
            reached[kind] = passed / 60
    return {kind: (fmean(scores[kind]), reached[kind], len(scores[kind])) for kind in ORDER if kind in scores}


def draw(steps: dict[str, tuple[float, float, int]], out: Path) -> None:
    """Draw a bar for each kind of model, the cheapest above, and write the figure."""
    plt.rcParams["svg.hashsalt"] = "cse"  # deterministic file
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(steps) + 0.7), layout="constrained")
    colours = [SHARED if shares_backbone(kind) else OWN for kind in steps]
    bars = axes.barh([IN_WORDS[kind] for kind in steps], [score for score, _, _ in steps.values()], color=colours)
    told = [
        f"{score:.1f}, after {minutes:.0f} min" if minutes >= 1 else f"{score:.1f}, at once"
        for score, minutes, _ in steps.values()
    ]
    axes.bar_label(bars, told, padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_xlabel("MAP * 100 on held-out rows; orange: the backbone's own weights change")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150)


def main() -> None:
    """Read the arguments and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path, help="of an adaptation (--out)")
    options = parser.parse_args()
    draw(read_steps(options.folder), options.out)


if __name__ == "__main__":
    main()
