"""Everything that is different on a GPU, in one command: checks against the CPU, memory, waits, speed.

    python -m benchmarks.gpu                  # about ten minutes, no network
    python -m benchmarks.gpu --device cpu     # the dry form: the same comparisons, CPU against CPU
    python -m benchmarks.gpu --only waits memory

Each part runs in a process of its own with a time limit, so that none hides the others. A table follows at the end, and
``.cse/gpu.json`` (``$OUT/gpu.json`` if that variable is set) holds every case. Exit code 1: a check failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT, environment, facts, parser_of

TESTS = ROOT / "tests" / "gpu"
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
LIMIT, PART_LIMIT = 540.0, 240.0  # seconds for everything: a lent machine ends a command after ten minutes
# options of a benchmark on a GPU, and in the dry form; no bundles: their export takes longer than all else
_ENCODE = ["--no-bundles", "--sentences", "10000", "--rounds", "2", "--peers", "torch-fp16", "flash-fp16"]
_DRY_ENCODE = ["--no-bundles", "--sentences", "50", "--rounds", "1", "--peers", "torch-fp32"]
SPEED = {
    "encode": (_ENCODE, _DRY_ENCODE),
    "encode --mixed": (_ENCODE, _DRY_ENCODE),
    "train": (
        ["--view", "sentences", "--batch-size", "256", "--steps", "80", "--rounds", "2"],
        ["--view", "sentences", "--batch-size", "16", "--steps", "11", "--rounds", "1"],
    ),
}
_PRECISION = re.compile(r"\b(fp64|fp32|bf16)\]$")

Row = dict[str, Any]  # part, case, result, figure, size, seconds, reason, trace


def row(part: str, case: str, result: str, *, figure: str = "", reason: str = "", **more: Any) -> Row:
    """Return a row."""
    return {"part": part, "case": case, "result": result, "figure": figure, "reason": reason} | more


def run_tests(file: Path, device: str, until: float) -> list[Row]:
    """Run a file of tests; what ended before its process died, or took too long, is told."""
    part = file.stem.removeprefix("test_")
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.jsonl"
        command = [sys.executable, "-m", "pytest", str(file), "-m", "gpu", "-q", "-p", "no:cacheprovider"]
        more = {"CSE_TEST_DEVICE": device, "CSE_GPU_REPORT": str(report), "OMP_NUM_THREADS": "2"}
        said, code = _process(command, until, more)
        text = report.read_text(encoding="utf-8") if report.is_file() else ""
    lines = [json.loads(line) for line in text.split("\n")[:-1]]  # the last may be cut off
    rows = []
    for line in lines:
        if line["result"] != "started":
            result = {"passed": PASSED, "skipped": SKIPPED}.get(line["result"], FAILED)
            rows.append(line | row(part, _case(line["test"]), result, figure=line["figure"], reason=line["reason"]))
    if code not in (0, 1):
        begun = _case(lines[-1]["test"]) if lines else "all"
        rows.append(row(part, f"{begun} and the rest", FAILED, reason=_why(said, code), trace=said[-4000:]))
    return rows


def run_speed(name: str, device: str, until: float) -> list[Row]:
    """Run a benchmark, a name and options, on a BERT of random weights and return its figures."""
    backbone = "random:bert-base" if device == "cuda" else "random:tiny"
    module, *more = name.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *more, "--backbone", backbone, "--device", device]
    said, code = _process(command + SPEED[name][0 if device == "cuda" else 1], until, {})
    if code != 0:
        return [row("speed", name, FAILED, reason=_why(said, code), trace=said[-4000:])]
    figures = json.loads((ROOT / ".cse" / "benchmarks" / f"{module}.json").read_text(encoding="utf-8"))
    rows = [row("speed", name, PASSED, figures=figures)]
    for who, each in figures["contestants"].items():
        rate, share = each["sentences_per_s"], each["share_of_floor"]
        figure = f"{rate:,.0f} sentences/s, {harness.percent(share)} of matrix products"
        if name == "train":  # a sentence is encoded twice
            figure += f", {2e6 / rate:,.1f} s per million sentences"
        rows.append(row("speed", f"{name}, {who}", PASSED, figure=figure))
    skipped = figures.get("skipped", {}).items()
    return rows + [row("speed", f"{name}, {who}", SKIPPED, reason=why) for who, why in skipped]


def table(rows: Sequence[Row]) -> str:
    """Return a table: a line for each check over all its cases, with the worst figure, and one for each that failed."""
    checks: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        check, precision = each["case"].partition("[")[0], _PRECISION.search(each["case"])
        checks.setdefault((each["part"], check + (f", {precision[1]}" if precision else "")), []).append(each)
    lines = []
    for (part, check), cases in checks.items():
        results = [case["result"] for case in cases]
        counted = ", ".join(f"{results.count(kind)} {kind}" for kind in (PASSED, FAILED, SKIPPED) if kind in results)
        worst = max(
            (case for case in cases if case["figure"]), key=lambda case: case.get("size", 0.0), default=cases[0]
        )
        reasons = sorted({case["reason"] for case in cases if case["result"] == SKIPPED})
        lines.append((part, check, counted, worst["figure"], "; ".join(reasons)))
        for case in (case for case in cases if case["result"] == FAILED):
            lines.append(("", case["case"], FAILED, case["figure"], case["reason"][:200]))
    return harness.table(("part", "check", "result", "figure (the worst)", "reason"), lines)


def main() -> None:
    """Run all parts, print the table, write the JSON."""
    parser = parser_of(__doc__)
    parts = [file.stem.removeprefix("test_") for file in sorted(TESTS.glob("test_*.py"))]
    named = [*parts, "speed"]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: the dry form")
    parser.add_argument("--only", nargs="+", choices=named, metavar="PART", default=named, help=", ".join(named))
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for everything")
    parser.add_argument("--jobs", type=int, help="parts at once, before speed; default: 3, in the dry form 1")
    options = parser.parse_args()
    if reason := _no_device(options.device):
        sys.exit(f"error: {reason}")
    start = time.monotonic()
    out = Path(os.environ.get("OUT") or ROOT / ".cse") / "gpu.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": facts(_name(options.device)), "dry": options.device == "cpu", "rows": []}
    works = [partial(run_tests, TESTS / f"test_{part}.py") for part in parts if part in options.only]
    speed = [partial(run_speed, name) for name in SPEED if "speed" in options.only]
    for several, jobs in ((works, options.jobs or (3 if options.device == "cuda" else 1)), (speed, 1)):
        with ThreadPoolExecutor(jobs) as pool:
            for found in pool.map(lambda work: work(options.device, start + options.limit), several):
                result["rows"] += found
                print(f"{found[0]['part']}: {len(found)} cases after {time.monotonic() - start:.0f} s", flush=True)
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    count = {kind: sum(each["result"] == kind for each in result["rows"]) for kind in (PASSED, FAILED, SKIPPED)}
    print(f"\n{json.dumps(result['machine'])}\n\n{table(result['rows'])}\n")
    counts = ", ".join(f"{number} {kind}" for kind, number in count.items())
    print(f"{counts} in {time.monotonic() - start:.0f} s: {out}", flush=True)
    sys.exit(1 if count[FAILED] or not count[PASSED] else 0)


def _no_device(device: str) -> str:
    """Return why nothing can run on the device, or an empty string."""
    if importlib.util.find_spec("torch") is None:
        return "no module torch; install it, or give PYTHON=the interpreter that has it"
    import torch

    missing = device == "cuda" and not torch.cuda.is_available()
    return "torch sees no GPU; `make gpu DEVICE=cpu` is the dry form" if missing else ""


def _name(device: str) -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}" if device == "cuda" else device


def _process(command: list[str], until: float, variables: dict[str, str]) -> tuple[str, int | None]:
    """Return the output of a command and its exit code; None if it took longer, when all its processes are killed."""
    own = environment(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", **variables)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, env=own, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=max(0.0, min(PART_LIMIT, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        return said.read(), code


def _why(said: str, code: int | None) -> str:
    """Return why a process failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no word"]
    return "took too long" if code is None else f"its process ended with {code}: {lines[-1][-200:]}"


def _case(test: str) -> str:
    return test.partition("::")[2].removeprefix("test_").replace("_", " ", test.partition("[")[0].count("_")) or "all"


if __name__ == "__main__":
    main()
