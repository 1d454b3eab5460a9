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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, environment, facts, parser_of

TESTS = ROOT / "tests" / "gpu"
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
LIMIT = 540.0  # seconds for everything: a lent machine ends a command after ten minutes
PART_LIMIT = 240.0
RESTARTS = 5  # of a part whose process died
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


class TimeLeft:
    """What is left of the time for everything."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.monotonic(), seconds

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def left(self, most: float) -> float:
        """Return the seconds that a part may take."""
        return min(most, self.seconds - self.passed)


def row(part: str, case: str, result: str, *, figure: str = "", reason: str = "", **more: Any) -> Row:
    """Return a row."""
    return {"part": part, "case": case, "result": result, "figure": figure, "reason": reason} | more


def run_tests(file: Path, device: str, clock: TimeLeft) -> list[Row]:
    """Run a file of tests, in a new process for those that are left whenever one dies."""
    part, done, rows = file.stem.removeprefix("test_"), set[str](), list[Row]()
    with tempfile.TemporaryDirectory() as place:
        for attempt in range(RESTARTS):
            seconds, report = clock.left(PART_LIMIT), Path(place) / f"{attempt}.jsonl"
            if seconds <= 5:
                return [*rows, row(part, "the rest", SKIPPED, reason="no time left")]
            command = [sys.executable, "-m", "pytest", str(file), "-m", "gpu", "-q", "-p", "no:cacheprovider"]
            command += [option for name in done for option in ("--deselect", name)]
            said, code = _process(command, seconds, {"CSE_TEST_DEVICE": device, "CSE_GPU_REPORT": str(report)})
            lines = _lines(report)
            ended = {line["test"]: line for line in lines if line["result"] != "started"}
            done |= set(ended)
            rows += [_row_of(part, line) for line in ended.values()]
            if code in (0, 1, 2, 5) and (ended or code == 5):  # 2: a file that cannot be read
                return rows
            begun = [line["test"] for line in lines if line["result"] == "started" and line["test"] not in ended]
            ending = f"its process ended with {code}: {_last(said)}"
            reason = f"took more than {seconds:.0f} s" if code is None else ending
            if begun:
                rows.append(row(part, _case(begun[-1]), FAILED, reason=reason, trace=said[-4000:]))
            elif not ended:  # no test ran: another try would say the same
                return [*rows, row(part, "all", FAILED, reason=reason, trace=said[-4000:])]
            done |= set(begun)
    return [*rows, row(part, "the rest", FAILED, reason=f"its process died {RESTARTS} times")]


def run_speed(name: str, device: str, clock: TimeLeft) -> list[Row]:
    """Run a benchmark, a name and options, on a BERT of random weights and return its figures."""
    part, backbone = "speed", "random:bert-base" if device == "cuda" else "random:tiny"
    seconds = clock.left(PART_LIMIT)
    if seconds <= 20:
        return [row(part, name, SKIPPED, reason="no time left")]
    module, *more = name.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *more, "--backbone", backbone, "--device", device]
    command += SPEED[name][0 if device == "cuda" else 1]
    out = ROOT / ".cse" / "benchmarks" / f"{module}.json"
    begun, start = time.time(), time.monotonic()
    said, code = _process(command, seconds, {})
    took: dict[str, Any] = {"seconds": round(time.monotonic() - start, 1)}
    if code != 0 or not out.is_file() or out.stat().st_mtime < begun - 1:
        reason = f"took more than {seconds:.0f} s" if code is None else _last(said) or "wrote no figures"
        return [row(part, name, FAILED, reason=reason, trace=said[-4000:], **took)]
    figures = json.loads(out.read_text(encoding="utf-8"))
    rows = [_speed_row(name, who, each) for who, each in figures.get("contestants", {}).items()]
    rows += [row(part, f"{name}, {who}", SKIPPED, reason=why) for who, why in figures.get("skipped", {}).items()]
    return [row(part, name, PASSED, figures=figures, **took), *rows]


def _speed_row(name: str, who: str, each: dict[str, Any]) -> Row:
    rate, share = each["sentences_per_s"], each.get("share_of_floor")
    figure = f"{rate:,.0f} sentences/s" + (f", {100 * share:.0f} % of matrix products" if share else "")
    if name == "train":  # a sentence is encoded twice
        figure += f", {2e6 / rate:,.1f} s per million sentences"
    return row("speed", f"{name}, {who}", PASSED, figure=figure)


def table(rows: Sequence[Row]) -> str:
    """Return a table: a line for each check over all its cases, with the worst figure, and one for each that failed."""
    checks: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        check, precision = each["case"].partition("[")[0], _PRECISION.search(each["case"])
        checks.setdefault((each["part"], check + (f", {precision[1]}" if precision else "")), []).append(each)
    lines = [("part", "check", "result", "figure (the worst)", "reason")]
    for (part, check), cases in checks.items():
        results = [case["result"] for case in cases]
        counted = [f"{results.count(kind)} {kind}" for kind in (PASSED, FAILED, SKIPPED) if kind in results]
        shown = [case for case in cases if case["figure"]]
        worst = max(shown, key=lambda case: case.get("size", 0.0), default={"figure": ""})
        reasons = sorted({case["reason"] for case in cases if case["result"] == SKIPPED})
        result = results[0] if len(cases) == 1 else ", ".join(counted)
        lines.append((part, check, result, worst["figure"], "; ".join(reasons)))
        for case in (case for case in cases if case["result"] == FAILED):
            name = case["case"].partition("[")[2].rstrip("]") or check
            lines.append(("", f"  {name}", FAILED, case["figure"], case["reason"][:200]))
    widths = [min(max(len(line[at]) for line in lines), 60) for at in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), *filter(None, line[3:])])
        for line in lines
    )


def main() -> None:
    """Run all parts, print the table, write the JSON."""
    parser = parser_of(__doc__)
    parts = [file.stem.removeprefix("test_") for file in sorted(TESTS.glob("test_*.py"))]
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: the dry form")
    named = [*parts, "speed"]
    parser.add_argument("--only", nargs="+", choices=named, metavar="PART", help=", ".join(named))
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for everything")
    parser.add_argument("--jobs", type=int, help="parts at once, before speed; default: 3, in the dry form 1")
    options = parser.parse_args()
    reason = _no_device(options.device)
    if reason:
        sys.exit(f"error: {reason}")
    clock, wanted = TimeLeft(options.limit), options.only or named
    out = Path(os.environ.get("OUT") or ROOT / ".cse") / "gpu.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": facts(_name(options.device)), "dry": options.device == "cpu", "rows": []}

    def add(found: list[Row]) -> None:
        result["rows"] += found
        for each in found:
            if each["result"] == FAILED:
                print(f"{each['part']}: {each['case']}: {FAILED} {each['reason']}"[:300], flush=True)
        print(f"{found[0]['part']}: {len(found)} cases after {clock.passed:.0f} s", flush=True)
        result["seconds"] = round(clock.passed, 1)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    try:
        files = [TESTS / f"test_{part}.py" for part in parts if part in wanted]
        with ThreadPoolExecutor(options.jobs or (3 if options.device == "cuda" else 1)) as pool:
            run = _guarded(lambda file: run_tests(file, options.device, clock))
            for done in as_completed([pool.submit(run, file) for file in files]):
                add(done.result())
        if "speed" in wanted:
            for name in SPEED:
                add(_guarded(lambda name: run_speed(name, options.device, clock))(name))
    except Exception as error:  # whatever it is: what was found is shown
        add([row("command", "itself", FAILED, reason=f"{type(error).__name__}: {error}")])
    finally:
        count = {kind: sum(each["result"] == kind for each in result["rows"]) for kind in (PASSED, FAILED, SKIPPED)}
        print(f"\n{json.dumps(result['machine'])}\n\n{table(result['rows'])}\n")
        counts = ", ".join(f"{number} {kind}" for kind, number in count.items())
        print(f"{counts} in {result.get('seconds', 0):.0f} s: {out}", flush=True)
    sys.exit(1 if count[FAILED] or not count[PASSED] else 0)


def _guarded(run: Callable[[Any], list[Row]]) -> Callable[[Any], list[Row]]:
    """Turn an error of a part into a row."""

    def safely(given: Any) -> list[Row]:
        try:
            return run(given)
        except Exception as error:  # whatever it is, the other parts go on
            return [row(getattr(given, "stem", str(given)), "all", FAILED, reason=f"{type(error).__name__}: {error}")]

    return safely


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


def _process(command: list[str], seconds: float, variables: dict[str, str]) -> tuple[str, int | None]:
    """Return the output of a command and its exit code; None if it took longer, when all its processes are killed."""
    variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"} | environment(**variables)
    if "pytest" in command:
        variables.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, cwd=ROOT, env=variables, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        return said.read(), code


def _lines(report: Path) -> list[dict[str, Any]]:
    """Return the lines of a report; the last may be cut off."""
    lines = report.read_text(encoding="utf-8").split("\n")[:-1] if report.is_file() else []
    return [json.loads(line) for line in lines]


def _row_of(part: str, line: dict[str, Any]) -> Row:
    """Return a row of a line that a test wrote."""
    result = {"passed": PASSED, "skipped": SKIPPED}.get(line["result"], FAILED)
    return line | row(part, _case(line["test"]), result, figure=line.get("figure", ""), reason=line.get("reason", ""))


def _case(test: str) -> str:
    return test.partition("::")[2].removeprefix("test_").replace("_", " ", test.partition("[")[0].count("_")) or "all"


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][-200:] if lines else ""


if __name__ == "__main__":
    main()
