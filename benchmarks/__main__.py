"""All benchmarks but the servers', one after the other, and one table at the end.

    make benchmark                        # also installs what they need
    python -m benchmarks train encode     # some of them, with their defaults
    python -m benchmarks --quick          # whether all of it runs here, in minutes; its ratios mean little

Run it while the machine is idle: it takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.harness import FOLDER, parser_of, table

QUICK = {
    "train": "--steps 11 --batch-size 32 --rounds 1",
    "encode": "--sentences 300 --rounds 1",
    "sweep": "--trials 2 --rows 300",
}


def run(names: Sequence[str], quick: bool) -> tuple[str, list[str]]:
    """Run benchmarks, each in a process of its own; return the table of their ratios, and which failed."""
    rows, failed = [], []
    for name in names:
        print(f"== {name}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *(QUICK[name].split() if quick else [])]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
            continue
        print(f"({time.monotonic() - start:.0f} s)\n", flush=True)
        figures = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        rows += [(name, what, f"{value:.2f}") for what, value in figures["ratios"].items()]
    return table(("benchmark", "ratio of", "median"), rows), failed


def main() -> int:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(QUICK)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    given = parser.parse_args()
    if unknown := set(given.names) - set(QUICK):
        parser.error(f"no benchmark {min(unknown)!r}; give some of {', '.join(QUICK)}")
    found, failed = run(given.names or list(QUICK), given.quick)
    print(found)
    for name in failed:
        print(f"error: {name} failed, see above", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
