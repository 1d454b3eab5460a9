"""Speed of two workers, and memory and time of gradient caching, on generated triplets and the built-in backbone.

    python -m benchmarks.scale workers     # steps per second: one single-threaded worker, then two (gloo)
    python -m benchmarks.scale cache       # peak memory and time per step: batch 64, batch 512, batch 512 in slices

Each measurement runs in its own process; rounds are interleaved, medians are shown. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import pyarrow as pa
import torch

from benchmarks.default_system import seconds_per_step
from cse.data.sample import sample_rows
from cse.training.group import ALONE, Group, ProcessGroup


def measure(batch: int, steps: int, group: Group, **cut: Any) -> dict[str, float]:
    """Train for some steps and return seconds per step, sentences per second and peak memory in GB."""
    names = ("sent0", "sent1", "hard_neg")
    made = sample_rows("triplets", batch * steps, seed=1)
    rows = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in made])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = seconds_per_step(rows, torch.device("cpu"), group, batch_size=batch, **cut)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "sentences": 3 * batch / seconds,
        "peak": peak / 2**20,
        "grown": (peak - before) / 2**20,
    }


def worker(arguments: argparse.Namespace) -> None:
    """Run one process of a measurement; the first process prints the result."""
    torch.set_num_threads(arguments.threads)
    group: Group = ALONE
    if arguments.size > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{arguments.meeting}", rank=arguments.rank, world_size=arguments.size
        )
        group = ProcessGroup(torch.device("cpu"))
    cut = {"row_groups": arguments.groups, "mini_batch_size": arguments.mini}
    found = measure(arguments.batch, arguments.steps, group, **cut)
    if arguments.rank == 0:
        print(json.dumps(found))


def run(size: int = 1, **options: Any) -> dict[str, float]:
    """Start the processes of one measurement and return the first one's result."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "benchmarks.scale", "worker", "--size", str(size), *flags]
        processes = [
            subprocess.Popen(
                [*command, "--rank", str(rank), "--meeting", f"{folder}/meeting"], stdout=subprocess.PIPE, text=True
            )
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise SystemExit("a measurement failed; see above")
    found: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return found


def compare_workers(rounds: int) -> None:
    """Print the speed of two workers relative to one."""
    common = {"batch": 128, "steps": 20, "groups": 4, "threads": 1}
    one, two = [], []
    for _ in range(rounds):
        one.append(run(1, **common)["sentences"])
        two.append(run(2, **common)["sentences"])
    first, second = statistics.median(one), statistics.median(two)
    print(f"one worker, one thread    {first:7.1f} sentences/s")
    print(f"two workers, one thread   {second:7.1f} sentences/s   {second / first:.2f} times")
    print("rounds: " + ", ".join(f"{b / a:.2f}" for a, b in zip(one, two, strict=True)))


def compare_memory() -> None:
    """Print memory and time of a large batch in slices."""
    common = {"steps": 10, "threads": torch.get_num_threads(), "groups": 1}
    rows = [
        ("batch 64, at once", run(1, batch=64, **common)),
        ("batch 512, at once", run(1, batch=512, **common)),
        ("batch 512, slices of 192", run(1, batch=512, mini=192, **common)),
    ]
    for label, found in rows:
        print(
            f"{label:26} peak {found['peak']:5.2f} GB (training {found['grown']:5.2f})   {found['seconds']:6.2f} s/step"
        )
    print(f"time of slices relative to one pass: {rows[2][1]['seconds'] / rows[1][1]['seconds']:.2f}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("workers").add_argument("--rounds", type=int, default=3)
    commands.add_parser("cache")
    inner = commands.add_parser("worker")
    for name in ("size", "rank", "batch", "steps", "groups", "mini", "threads"):
        inner.add_argument(f"--{name}", type=int)
    inner.add_argument("--meeting")
    arguments = parser.parse_args()
    if arguments.command == "worker":
        worker(arguments)
    elif arguments.command == "workers":
        compare_workers(arguments.rounds)
    else:
        compare_memory()


if __name__ == "__main__":
    main()
