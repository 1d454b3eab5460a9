"""Cost of orchestration: the same pipeline with ``dvc repro``, with the flow alone, and on a Prefect worker.

Each run uses a fresh clone, so all stages run. The target is less than 10 seconds plus 2 % over ``dvc repro``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
FLOOR_SECONDS, SHARE = 10.0, 0.02


@click.command()
@click.option(
    "--rounds", default=2, show_default=True, help="Rounds, each with one run per variant; the fastest counts."
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Settings for every run.")
def main(rounds: int, overrides: Sequence[str]) -> None:
    """Print the seconds of each variant and its overhead over ``dvc repro``."""
    with tempfile.TemporaryDirectory(prefix="orchestration-") as folder:
        place = Path(folder)
        fastest: dict[str, float] = {}
        for number in range(rounds):
            for way, run in (("dvc repro", _by_hand), ("cse flow train", _by_flow), ("worker", _by_worker)):
                clone = _clone(place / f"{way.replace(' ', '-')}-{number}" / "clone", overrides)
                seconds = run(clone, place)
                print(f"round {number + 1}: {way}: {seconds:.1f} s", flush=True)
                fastest[way] = min(seconds, fastest.get(way, seconds))
    own = fastest["dvc repro"]
    allowed = FLOOR_SECONDS + SHARE * own
    for way, seconds in fastest.items():
        print(f"{way:16} {seconds:7.1f} s   {seconds - own:+6.1f} s   (allowed {allowed:.1f})")


def _by_hand(clone: Path, place: Path) -> float:
    return _seconds([sys.executable, "-m", "dvc", "repro"], clone, {})


def _by_flow(clone: Path, place: Path) -> float:
    """Time the whole command, including the start of Prefect's temporary server."""
    return _seconds(
        [sys.executable, "-m", "cse.cli", "flow", "train"], clone, {"PREFECT_HOME": str(place / "temporary-home")}
    )


def _by_worker(clone: Path, place: Path) -> float:
    """Time from the request to the end of the run, with server and worker already running."""
    with _server(place) as environment:
        _run([sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], clone, environment)
        worker = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "cse-local"],
            cwd=clone, env=_environment(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            time.sleep(10)  # the worker has to be up
            seconds = _seconds(
                [sys.executable, "-m", "prefect", "deployment", "run", "train-cse/local", "--watch"], clone, environment
            )
            print(f"         of which the run itself: {_run_time(environment['PREFECT_API_URL']):.1f} s", flush=True)
            return seconds
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _run_time(url: str) -> float:
    """Return the seconds from the newest run's first task to its end, without the worker's polling delay."""
    body = json.dumps({"sort": "EXPECTED_START_TIME_DESC", "limit": 1}).encode()
    request = urllib.request.Request(f"{url}/flow_runs/filter", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return float(json.load(answer)[0]["total_run_time"])


@contextmanager
def _server(place: Path) -> Iterator[dict[str, str]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=_environment({"PREFECT_HOME": str(place / "server-home")}),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(240):
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{url}/health", timeout=2)
                break
            time.sleep(0.5)
        yield {"PREFECT_HOME": str(place / "client-home"), "PREFECT_API_URL": url}
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _clone(folder: Path, overrides: Sequence[str]) -> Path:
    from cse.cli.options import parse_overrides
    from cse.settings.edit import write_values

    folder.parent.mkdir(parents=True)
    _run(["git", "clone", "--quiet", str(ROOT), str(folder)], ROOT, {})
    if overrides:
        write_values(folder / "params.yaml", parse_overrides(overrides))
    return folder


def _seconds(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    _run(command, cwd, environment)
    return time.perf_counter() - started


def _run(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(command, cwd=cwd, env=_environment(environment), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} returned {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    private = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "DVC_NO_ANALYTICS": "1"}
    return os.environ | {"PATH": path} | private | dict(more)


if __name__ == "__main__":
    main()
