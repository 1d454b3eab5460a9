"""The servers that the serving benchmark compares with, and how each is run: the settings that were worth a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.asking import LoadError
from benchmarks.servers import ROOT, ServerUnderTest, Setting

INFINITY = ROOT / ".venv-infinity/bin/python"
BFLOAT16_TOLERANCE = 2e-2  # its numbers have 8 bits: the vectors are right, but differ from the third digit on
# torch's threads wait for each other in a loop that takes the core from everything else on a busy machine
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
_INFINITY_PACKAGES = ("infinity-emb", "torch", "transformers", "sentence-transformers", "optimum", "onnxruntime")
_OWN_PACKAGES = ("sentence-transformers", "torch", "transformers", "fastapi", "uvicorn")
_VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


def versions(python: Path | str, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages in an environment.

    Raises:
        LoadError: a package is missing.
    """
    done = subprocess.run([str(python), "-c", _VERSIONS, *packages], capture_output=True, text=True)
    if done.returncode:
        raise LoadError(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def sentence_transformers(model: Path, device: str) -> list[ServerUnderTest]:
    """Return sentence-transformers behind FastAPI, by precision.

    Raises:
        LoadError: it is not installed.
    """
    try:
        facts = versions(sys.executable, _OWN_PACKAGES)
    except LoadError as error:
        raise LoadError(
            f"{error}\nsentence-transformers is missing; run: pip install -c constraints.txt -e '.[benchmarks]'"
        ) from None
    app = (sys.executable, "-m", "benchmarks.peers.sentence_transformers_app", str(model), "--port", "{port}")
    one, two = ("--threads", "1"), ("--workers", "2", "--threads", "1")
    ways: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "batching, passive threads": (("--batching",), PASSIVE),
        "batching": (("--batching",), {}),
        "batching, 1 thread": (("--batching", *one), {}),
        "no batching, passive threads": ((), PASSIVE),
        "no batching, 2 workers of 1 thread": (two, {}),
    }
    found = []
    for dtype in ("float32", "bfloat16"):
        run = (*app, "--dtype", dtype, "--device", device)
        settings = tuple(Setting(name, (*run, *way), environment) for name, (way, environment) in ways.items())
        tolerance = 1e-3 if dtype == "float32" else BFLOAT16_TOLERANCE
        name = f"sentence-transformers {dtype}"
        found.append(ServerUnderTest(name, settings, tolerance=tolerance, facts={"versions": facts}))
    return found


def infinity(model: Path, device: str, python: Path = INFINITY) -> list[ServerUnderTest]:
    """Return infinity-emb, by precision.

    Raises:
        LoadError: its environment is missing or damaged.
    """
    if not python.is_file():
        raise LoadError(
            f"infinity-emb needs an environment of its own, and {python} is missing; run: make benchmark-serve\n"
            "or measure without it: python -m benchmarks.serve --peers sentence-transformers"
        )
    facts = {"versions": versions(python, _INFINITY_PACKAGES)}
    run = (
        str(python.with_name("infinity_emb")),
        "v2",
        "--model-id",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    )
    served = (*run, "--device", device, "--log-level", "warning")
    plain = ("--no-bettertransformer", "--no-compile")
    better = ("--bettertransformer", "--no-compile")
    compiled = ("--no-bettertransformer", "--compile")
    ways: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        "plain, passive threads": (plain, PASSIVE),
        "plain": (plain, {}),
        "plain, passive threads, batches of 64": ((*plain, "--batch-size", "64"), PASSIVE),
        "BetterTransformer, passive threads": (better, PASSIVE),
        "torch.compile, passive threads": (compiled, PASSIVE),
    }
    found = []
    for dtype in ("float32", "bfloat16"):
        torch = (*served, "--engine", "torch", "--dtype", dtype)
        settings = tuple(Setting(name, (*torch, *way), environment) for name, (way, environment) in ways.items())
        tolerance = 1e-3 if dtype == "float32" else BFLOAT16_TOLERANCE
        found.append(ServerUnderTest(f"infinity torch {dtype}", settings, "infinity", tolerance, facts))
    return found
