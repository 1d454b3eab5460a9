"""What the benchmarks keep: the machine, the lengths of the texts, the figures of a run and a history of ratios.

A run writes ``.cse/benchmarks/NAME.json`` and adds its ratios to ``.cse/benchmarks/history-NAME.csv``, which DVC draws:

    dvc plots show .cse/benchmarks/history-train.csv -x run -y ratio -t ratios    # dvc_plots/index.html
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import machine
from cse.errors import CseError
from cse.files import write_csv

FOLDER = Path(".cse/benchmarks")
_PACKAGES = (
    "cse", "torch", "transformers", "onnxruntime", "onnxruntime-gpu", "sentence-transformers", "peft", "accelerate"
)  # fmt: skip
_HEAD = ("run", "date", "commit", "name", "ratio")
_BIN, _BAR = 4, 40  # tokens, characters


def histogram(lengths: Iterable[int]) -> dict[str, int]:
    """Return the number of texts by number of tokens, in ranges of four: ``5-8`` and so on."""
    counts = Counter((length - 1) // _BIN for length in lengths)
    if not counts:
        return {}
    return {f"{_BIN * at + 1}-{_BIN * (at + 1)}": counts[at] for at in range(min(counts), max(counts) + 1)}


def drawn(counts: Mapping[str, int]) -> str:
    """Return a histogram as text, a line per range."""
    most = max(counts.values(), default=1)
    return "\n".join(
        f"{name:>9} tokens {count:7,} {'#' * round(_BAR * count / most)}" for name, count in counts.items()
    )


def lengths_in_words(lengths: Sequence[int], limit: int) -> str:
    """Return a summary of the lengths, in tokens, and their histogram."""
    cut = f", {sum(length >= limit for length in lengths):,} reach the limit of {limit}"
    return f"{len(lengths):,} texts, {np.mean(lengths):.1f} tokens on average{cut}\n{drawn(histogram(lengths))}"


def facts(device: str) -> dict[str, Any]:
    """Return the machine, the device, the versions, the commit and the time."""
    return {
        "machine": machine() | {"torch_threads": torch.get_num_threads()},
        "device": device,
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def keep(name: str, figures: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Write the figures of a run and add its ``ratios`` to the history; return the JSON's path.

    Args:
        figures: ``facts()`` and whatever was measured, ``ratios`` by name among it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out, history = folder / f"{name}.json", folder / f"history-{name}.csv"
    out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    before: list[list[str]] = []
    if history.is_file():
        with history.open(encoding="utf-8", newline="") as stream:
            before = list(csv.reader(stream))[1:]
    run = max((int(row[0]) for row in before), default=0) + 1
    rows = [(run, figures["date"], figures["commit"], key, f"{value:.4g}") for key, value in figures["ratios"].items()]
    write_csv(history, _HEAD, [*before, *rows])
    return out


def run(name: str, measure: Callable[[], Mapping[str, Any]]) -> int:
    """Measure, print the ``table`` and keep the figures, or print the error; return the exit code."""
    try:
        figures = measure()
    except CseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(figures["table"])
    print(f"figures: {keep(name, figures)}")
    return 0


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a Markdown table with aligned columns."""
    lines = [head, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    cells = [
        "| " + " | ".join(f"{cell:{'<' if at == 0 else '>'}{widths[at]}}" for at, cell in enumerate(line)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ("-" if at == 0 else ":") for at, width in enumerate(widths)) + "|"
    return "\n".join([cells[0], rule, *cells[1:]])


def percent(value: float | None) -> str:
    """Return a share as text; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    """Return the commit of the code, ``+`` behind it if files differ; empty outside of git."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip()
