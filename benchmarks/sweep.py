"""What a sweep costs beyond its trainings: ``cse tune`` against the same trainings one after the other.

    python -m benchmarks.sweep                        # 4 trials of 1,500 triplets
    python -m benchmarks.sweep --trials 8 --rows 3000

Both run in a clone of this project whose rows are prepared. ``cse tune`` is the whole command: start of Ray, trials (as
many at once as there are cores), tables and pages, and a DVC experiment per trial. The other trains the same settings
in one process, with all cores and the backbone loaded once, and does nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, facts, parser_of, run, say, table, timed
from cse.errors import CseError
from cse.files import read_csv
from cse.settings import load_settings
from cse.settings.document import write_values
from cse.settings.load import settings_with
from cse.stages.place import Place

KEY = "train.learning_rate"


def by_tune(clone: Path, rates: list[float]) -> dict[str, float]:
    """Run ``cse tune`` and return its seconds, and those of its trials together."""
    command = [sys.executable, "-m", "cse", "tune", "--over", f"{KEY}=[{', '.join(map(str, rates))}]"]
    seconds = timed(lambda: _run(command, clone))
    (trials,) = (clone / ".cse/tune").glob("*/trials.csv")
    rows = read_csv(trials)
    finished = [row for row in rows if row["state"] == "finished"]
    if len(finished) != len(rates):
        raise CseError(f"cse tune: {len(finished)} of {len(rates)} trials finished: {rows}")
    return {"seconds": seconds, "trials": sum(float(row["seconds"]) for row in finished)}


def one_by_one(clone: Path, rates: list[float], out: Path) -> float:
    """Train the same settings in this process and return the seconds."""
    settings = load_settings(clone / "params.yaml")
    data = clone / "data/prepared"

    def run() -> None:
        for number, rate in enumerate(rates):
            place, own = Place(out / str(number)), settings_with(settings, {KEY: rate})
            place.train(own, data, scratch=place.folder / "scratch")

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return timed(run)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Sweep and train, and return the figures."""
    rates = [round(5e-3 * (number + 1), 6) for number in range(options.trials)]  # the trials take equally long
    with tempfile.TemporaryDirectory(prefix="sweep-") as name:
        place = Path(name)
        clone = place / "clone"
        _run(["git", "clone", "--quiet", str(ROOT), str(clone)], ROOT)
        write_values(clone / "params.yaml", {"data.max_rows": options.rows, "train.device": "cpu"})
        _run([sys.executable, "-m", "dvc", "repro", "prepare"], clone)  # what a sweep and a training read
        say(f"{options.trials} trainings one after the other")
        plain = one_by_one(clone, rates, place / "trainings")
        say(f"cse tune with {options.trials} trials")
        swept = by_tune(clone, rates)
    seconds = {"one after the other": plain, "cse tune": swept["seconds"]}
    names = (f"{options.trials} trainings, one process", "the same by cse tune")
    rows = [
        (name, f"{taken:.1f}", f"{3600 * len(rates) / taken:.0f}", f"{taken / plain:.2f}")
        for name, taken in zip(names, seconds.values(), strict=True)
    ]
    head = ("sweep", "seconds", "trials per hour", "this / one after the other")
    return facts("cpu") | {
        "trials": options.trials,
        "rows": options.rows,
        "seconds": seconds | {"its trials": swept["trials"]},
        "ratios": {"cse tune / one after the other": swept["seconds"] / plain},
        "table": f"{table(head, rows)}\nthe trials of cse tune took {swept['trials']:.1f} s together",
    }


def _run(command: Sequence[str], folder: Path) -> None:
    # the clone and its parts find one another by git, not by a folder of this process
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise CseError(f"{' '.join(command)[:120]} returned {done.returncode}: {last[:300]}")


def main() -> int:
    """Print the table and keep the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=4, help="of the sweep")
    parser.add_argument("--rows", type=int, default=1500, help="triplets of the sample, at most 3,000")
    options = parser.parse_args()
    if options.rows > 3000:
        parser.error(f"--rows {options.rows}: the sample has 3,000")
    return run("sweep", lambda: measure(options))


if __name__ == "__main__":
    sys.exit(main())
