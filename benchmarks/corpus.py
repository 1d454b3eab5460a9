"""`cse index` against a bare loop around ``OnnxEncoder.encode``, and its memory.

    python -m benchmarks.corpus --model data/bundle
    python -m benchmarks.corpus --rows 100000 --rounds 1    # does memory grow with the corpus?

One single-threaded process per worker runs the bare loop over the same sentences in the same portions, so that both
load the same cores equally; rounds are interleaved, medians are shown. The start-up of `cse index` (Python, Ray, models
in the actors, shutdown) is its time for one line per worker. On a busy machine, look at the CPU time: that of all
processes of `cse index`, including Ray's, minus that of its start-up. Memory is the most that the command, and its
actors with it, held; resident sets count shared pages once per process.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import facts, listed, parser_of, run, say
from benchmarks.inputs import endless_rows
from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.session import usable_cpus
from cse.search.rows import PIECE

_SAMPLE_SECONDS = 0.25


def bare_loop(model: str, texts: list[str], portion: int, barrier: Any, seconds: Any) -> None:
    """Encode portions one by one on one thread; put wall and CPU seconds into a queue."""
    encoder = OnnxEncoder(model, provider="cpu", threads=1)
    encoder.encode(texts[:200])
    barrier.wait()
    start, cpu = time.perf_counter(), time.process_time()
    for first in range(0, len(texts), portion):
        encoder.encode(texts[first : first + portion])
    seconds.put((time.perf_counter() - start, time.process_time() - cpu))


def bare_rate(model: str, texts: list[str], portion: int, workers: int) -> tuple[float, float]:
    """Return the total rows per second of bare loops in ``workers`` processes, and their CPU seconds per row."""
    context = multiprocessing.get_context("spawn")
    barrier, seconds = context.Barrier(workers), context.Queue()
    share = len(texts) // workers
    processes = [
        context.Process(target=bare_loop, args=(model, texts[n * share : (n + 1) * share], portion, barrier, seconds))
        for n in range(workers)
    ]
    for process in processes:
        process.start()
    took = [seconds.get() for _ in processes]
    for process in processes:
        process.join()
    return sum(share / wall for wall, _ in took), sum(cpu for _, cpu in took) / (share * workers)


@dataclass
class IndexRun:
    """Cost of a run of `cse index`: seconds, CPU seconds of all its processes, peak memory in MB."""

    seconds: float = 0.0
    cpu: dict[int, float] = field(default_factory=dict)
    driver: float = 0.0
    with_actors: float = 0.0

    def sample(self, pid: int) -> None:
        """Sample the processes of a command."""
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(pid)
            resident = self._look(driver)
            self.driver = max(self.driver, resident)
            for child in driver.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    own = self._look(child)
                    resident += own if "MapBatches" in " ".join(child.cmdline()) else 0
            self.with_actors = max(self.with_actors, resident)

    def _look(self, process: psutil.Process) -> float:
        times = process.cpu_times()
        self.cpu[process.pid] = times.user + times.system
        return float(process.memory_info().rss / 1e6)


def index(corpus: Path, out: Path, model: str, *options: str) -> IndexRun:
    """Run `cse index` and measure it."""
    command = [sys.executable, "-m", "cse.cli", "index", str(corpus), "--out", str(out), "--model", model]
    start, run = time.perf_counter(), IndexRun()
    process = subprocess.Popen([*command, "--device", "cpu", *options], stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        run.sample(process.pid)
        time.sleep(_SAMPLE_SECONDS)
    run.seconds = time.perf_counter() - start
    if process.returncode:
        raise CseError(process.stderr.read() if process.stderr else "cse index failed")
    return run


def throughput(work: Path, options: argparse.Namespace) -> dict[str, float]:
    """Measure the bare loop and `cse index` alternately."""
    texts = list(islice(chain.from_iterable(endless_rows("triplets")), options.rows))
    corpus, few = work / "corpus.txt", work / "few.txt"
    corpus.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    few.write_text("a line\n" * options.workers, encoding="utf-8")
    workers = ["--workers", str(options.workers)]
    bare, whole, start = [], [], []
    for round_ in range(options.rounds):
        bare.append(bare_rate(options.model, texts, PIECE, options.workers))
        start.append(index(few, work / f"few-{round_}", options.model, *workers))
        whole.append(index(corpus, work / f"out-{round_}", options.model, *workers))
        say(
            f"round {round_ + 1}: bare {bare[-1][0]:.1f} rows/s, start-up {start[-1].seconds:.1f} s, "
            f"whole {whole[-1].seconds:.1f} s"
        )
    rates = [options.rows / (run.seconds - up.seconds) for run, up in zip(whole, start, strict=True)]
    cpu = [(sum(run.cpu.values()) - sum(up.cpu.values())) / options.rows for run, up in zip(whole, start, strict=True)]
    after = [rate / one for rate, (one, _) in zip(rates, bare, strict=True)]
    with_start = [options.rows / run.seconds / one for run, (one, _) in zip(whole, bare, strict=True)]
    return {
        "bare loop, rows/s per core": statistics.median(rate for rate, _ in bare) / options.workers,
        "cse index, rows/s per core, after start-up": statistics.median(rates) / options.workers,
        "ratio after start-up": statistics.median(after),
        "start-up and end, s": statistics.median(run.seconds for run in start),
        "ratio with start-up": statistics.median(with_start),
        "bare loop, rows per CPU second": statistics.median(1 / one for _, one in bare),
        "cse index, rows per CPU second": statistics.median(1 / own for own in cpu),
        "ratio of rows per CPU second": statistics.median(one / own for own, (_, one) in zip(cpu, bare, strict=True)),
        "driver, MB": max(run.driver for run in whole),
        "driver and actors, MB": max(run.with_actors for run in whole),
    }


def main() -> int:
    """Print the figures and keep them."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="data/bundle", help="bundle")
    parser.add_argument("--workers", type=int, default=usable_cpus(), help="of `cse index`")
    parser.add_argument("--rows", type=int, default=16_384, help="sentences")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    options = parser.parse_args()

    def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            figures = throughput(Path(folder), options)
        return facts("cpu") | {"figures": figures, "table": listed(figures)}

    return run("corpus", measure)


if __name__ == "__main__":
    sys.exit(main())
