"""What every benchmark shares: options, interleaved rounds, the machine and tables.

A run writes ``.cse/benchmarks/NAME.json``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cse.errors import CseError, error_line
from cse.files import write_json

ROOT = Path(__file__).parents[1]
FOLDER = Path(".cse/benchmarks")
_PACKAGES = (
    "cse", "torch", "transformers", "onnxruntime", "onnxruntime-gpu", "openvino", "sentence-transformers", "peft",
    "accelerate", "tokenizers", "fastapi", "uvicorn",
)  # fmt: skip


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The docstring as it is, and the default of each option."""


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's command line."""
    return argparse.ArgumentParser(description=text, formatter_class=_Help)


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


def interleave(
    contestants: Mapping[str, Callable[[], float]], rounds: int, *, quiet: bool = False
) -> dict[str, list[float]]:
    """Return what each measured; each runs once a round, so that other load slows all alike."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            found[name].append(run())
            if not quiet:
                say(f"round {number + 1} of {rounds}: {name}: {found[name][-1]:,.4g}")
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return ``above / below``, of neighbours in time."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def lengths_in_words(lengths: Sequence[int], limit: int) -> str:
    """Return a summary of the lengths of texts in tokens."""
    mean, cut = statistics.mean(lengths), sum(length >= limit for length in lengths)
    return f"{len(lengths):,} texts, {mean:.1f} tokens on average, {cut:,} reach the limit of {limit}"


def facts(device: str) -> dict[str, Any]:
    """Return the machine, the device, the versions, the commit and the time."""
    return {
        "machine": machine(),
        "device": device,
        "versions": versions(_PACKAGES),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine() -> dict[str, Any]:
    """Return what the machine is."""
    import psutil

    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cpus": len(psutil.Process().cpu_affinity() or []) or psutil.cpu_count(),
        "memory_gigabytes": round(psutil.virtual_memory().total / 1e9),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def environment(**more: str) -> dict[str, str]:
    """Return this process's variables for another that finds this project first."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path} | more


def run(name: str, measure: Callable[[], Mapping[str, Any]]) -> int:
    """Measure, print the ``table`` and keep the figures, or print the error; return the exit code."""
    try:
        figures = measure()
    except (CseError, OSError) as error:
        print(f"error: {error_line(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(figures["table"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    out = FOLDER / f"{name}.json"
    write_json(out, figures)
    print(f"figures: {out}")
    for fault in figures.get("faults", ()):
        print(f"error: {fault}", file=sys.stderr)
    return int(bool(figures.get("faults")))


def listed(figures: Mapping[str, Any]) -> str:
    """Return figures as text, one a line."""
    return "\n".join(
        f"{name:60} {f'{value:,.4g}' if isinstance(value, float) else value}" for name, value in figures.items()
    )


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


def _commit() -> str:
    """Return the commit of the code, ``+`` behind it if files differ; empty outside of git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
