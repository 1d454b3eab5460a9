"""CPU time of `cse index` over that of the bare encoder, and its memory.

    python -m benchmarks.corpus --model data/bundle
    python -m benchmarks.corpus --rows 100000 --rounds 1    # does memory grow with the corpus?

Both are processes that embed the same sentences, interleaved; of each, the CPU time of one that embeds a single
sentence is taken away, which is its start. Tokens, words, the table and its indexes count as `cse index`'s own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from benchmarks.harness import facts, interleave, listed, parser_of, ratio, run
from benchmarks.inputs import endless_rows
from cse.errors import CseError
from cse.search.rows import PIECE

_BARE = f"""
import sys
from pathlib import Path
from cse.runtime.onnx_encoder import OnnxEncoder
texts = Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()
encoder = OnnxEncoder(sys.argv[1], provider="cpu")
for first in range(0, len(texts), {PIECE}):
    encoder.encode(texts[first : first + {PIECE}])
"""


def cost(*command: object) -> tuple[float, float]:
    """Run Python with a command; return its CPU seconds and the most memory that it held, in MB."""
    process = subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise CseError(f"{' '.join(map(str, command))[:200]}: failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def measure(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the bare encoder and `cse index` alternately."""
    texts = list(islice(chain.from_iterable(endless_rows("triplets")), options.rows))
    whole, one, tables, peaks = work / "whole.txt", work / "one.txt", count(), list[float]()
    whole.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    one.write_text(f"{texts[0]}\n", encoding="utf-8")

    def bare(corpus: Path) -> float:
        return cost("-c", _BARE, options.model, corpus)[0]

    def index(corpus: Path) -> float:
        out = work / f"table-{next(tables)}"
        named = ("--out", out, "--model", options.model, "--device", "cpu")
        seconds, peak = cost("-m", "cse", "index", corpus, *named)
        peaks.append(peak)
        return seconds

    runs = {"bare": bare, "index": index}
    contestants = {
        f"{name}, {corpus.stem}": lambda work=work, corpus=corpus: work(corpus)
        for name, work in runs.items()
        for corpus in (one, whole)
    }
    found = interleave(contestants, options.rounds)
    own = {
        name: [all_ - start for all_, start in zip(found[f"{name}, whole"], found[f"{name}, one"], strict=True)]
        for name in runs
    }
    over = ratio(own["index"], own["bare"])
    figures = {
        "bare encoder, rows per CPU second": options.rows / statistics.median(own["bare"]),
        "cse index, rows per CPU second": options.rows / statistics.median(own["index"]),
        "cse index over the bare encoder, CPU": str(over),
        "start of cse index, CPU s": statistics.median(found["index, one"]),
        "cse index, peak MB": max(peaks),
    }
    ratios = {"index over bare, CPU": over.median}
    return facts("cpu") | {"figures": figures, "ratios": ratios, "table": listed(figures)}


def main() -> int:
    """Print the figures and keep them."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="data/bundle", help="bundle")
    parser.add_argument("--rows", type=int, default=16_384, help="sentences")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run("corpus", lambda: measure(Path(folder), options))


if __name__ == "__main__":
    sys.exit(main())
