"""All benchmarks of `make benchmark`, one after the other, and one table at the end.

Run it while the machine is idle: it takes a quarter of an hour on two cores. Each runs alone as well, with options:
`python -m benchmarks.train --help`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.harness import FOLDER, parser_of, table


def main() -> int:
    """Run benchmarks, each in a process of its own, and print the table of their ratios."""
    parser_of(__doc__).parse_args()
    rows, failed = [], []
    for name in ("train", "encode", "sweep"):
        print(f"== {name}", flush=True)
        start = time.monotonic()
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
            continue
        print(f"({time.monotonic() - start:.0f} s)\n", flush=True)
        figures = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        rows += [(name, what, f"{value:.2f}") for what, value in figures["ratios"].items()]
    print(table(("benchmark", "ratio of", "median"), rows))
    for name in failed:
        print(f"error: {name} failed, see above", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
