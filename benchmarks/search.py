"""Latency, recall and memory of `cse search` on generated texts, as a search grows by rows.

    python -m benchmarks.search --sizes 100000 1000000

Texts are twelve words, most of them of one of many topics; a small random model of the usual width embeds them. `cse
embed` and `cse index` make the index, then a process of its own opens it and asks one query after the other. On a busy
machine, look at the CPU time. Memory is the most that this process holds (its resident set, without the model), and of
the build the most of `cse embed` and `cse index`. Recall is the share of the ten nearest by exact search that the
approximate one finds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpus import WORDS, small_model
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.table import open_table

PER_TOPIC, OF_TOPIC, LENGTH, QUERY = 250, 40, 12, 8  # rows, words, words of a row and of a query
WAYS = {"vectors": ("vectors", False), "words": ("words", False), "hybrid": ("hybrid", False),
        "vectors, exact": ("vectors", True)}  # fmt: skip


def texts(topics: np.ndarray, count: int, length: int, seed: int) -> list[str]:
    """Return texts of ``length`` words, each of a random topic; a word in six is of none."""
    rng = np.random.default_rng(seed)
    words = topics[rng.integers(0, len(topics), (count, 1)), rng.integers(0, topics.shape[1], (count, length))]
    words = np.where(rng.random(words.shape) < 1 / 6, rng.integers(1, WORDS, words.shape), words)
    return [" ".join(f"w{number}" for number in row) for row in words]


def ask(folder: str, queries: Path) -> dict[str, Any]:
    """Search for each query in each way; return milliseconds, recall and the peak of memory in MB."""
    table, given = open_table(folder), np.load(queries)
    asked = list(zip(given["texts"].tolist(), given["vectors"], strict=True))
    found: dict[str, Any] = {}
    nearest: dict[str, list[set[Any]]] = {}
    for way, (mode, exact) in WAYS.items():
        times, nearest[way] = [], []
        some = asked[: len(asked) // 4] if exact else asked
        cpu = time.process_time()
        for text, vector in [*some[:3], *some]:  # three to warm up
            start = time.perf_counter()
            (hits,) = table.search([text], vector[None], 10, mode, exact=exact)  # type: ignore[arg-type]
            times.append(1000 * (time.perf_counter() - start))
            nearest[way].append({hit.id for hit in hits})
        half, most = np.quantile(times[3:], [0.5, 0.95])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        each = 1000 * (time.process_time() - cpu) / len(times)
        found |= {f"{way}: p50, ms": half, f"{way}: p95, ms": most, f"{way}: CPU time, ms": each}
        found[f"{way}: peak so far, MB"] = peak
    pairs = list(zip(nearest["vectors"], nearest["vectors, exact"], strict=False))
    return found | {"recall@10": float(np.mean([len(one & other) / 10 for one, other in pairs[3:]]))}


def measure(work: Path, rows: int) -> dict[str, Any]:
    """Embed, index and search a corpus."""
    model, corpus, folder = small_model(work / f"model-{rows}"), work / f"{rows}.txt", str(work / f"vectors-{rows}")
    topics = np.random.default_rng(0).integers(1, WORDS, (max(rows // PER_TOPIC, 1), OF_TOPIC))
    with corpus.open("w", encoding="utf-8") as stream:
        for first in range(0, rows, 10_000):
            stream.writelines(f"{line}\n" for line in texts(topics, min(10_000, rows - first), LENGTH, first + 1))
    cse = [sys.executable, "-m", "cse.cli"]
    options = ["--model", str(model), "--keep-text", "--workers", "0", "--provider", "cpu"]
    subprocess.run([*cse, "embed", str(corpus), "--out", folder, *options], check=True)
    start = time.perf_counter()
    subprocess.run([*cse, "index", folder], check=True)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6  # `cse embed` holds less, see corpus.py
    queries = texts(topics, 200, QUERY, -1 % 2**32)
    vectors = OnnxEncoder(model, provider="cpu").encode(queries, normalize=True)
    np.savez(work / "queries.npz", texts=np.array(queries), vectors=vectors)
    command = [sys.executable, "-m", "benchmarks.search", "--ask", folder, str(work / "queries.npz")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    size = sum(path.stat().st_size for path in Path(folder, "index.lance").rglob("*") if path.is_file()) / 1e6
    built = {"build, s": seconds, "build: peak of embed and index, MB": peak, "index on disk, MB": size}
    return built | json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask(options.ask[0], Path(options.ask[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.sizes:
            for name, value in measure(Path(folder), rows).items():
                print(f"{rows:,} rows: {name:40} {value:10.2f}", flush=True)


if __name__ == "__main__":
    main()
