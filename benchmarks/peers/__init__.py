"""The servers that the serving benchmark compares with, and how each is run: the settings that were worth a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import ROOT, versions
from benchmarks.servers import ServerUnderTest, Setting
from cse.errors import CseError

Ways = dict[str, tuple[tuple[str, ...], dict[str, str]]]  # options and variables

INFINITY = ROOT / ".venv-infinity/bin/python"
BFLOAT16_TOLERANCE = 2e-2  # its numbers have 8 bits: the vectors are right, but differ from the third digit on
# torch's threads wait for each other in a loop that takes the core from everything else on a busy machine
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
_INFINITY_PACKAGES = ("infinity-emb", "torch", "transformers", "sentence-transformers", "optimum", "onnxruntime")
_VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"


def sentence_transformers(model: Path) -> list[ServerUnderTest]:
    """Return sentence-transformers behind FastAPI, by precision."""
    if not (found := versions(["sentence-transformers"])):
        more = "run: pip install -c constraints.txt -e '.[benchmarks]'"
        raise CseError(f"sentence-transformers is missing; {more}")
    app = (sys.executable, "-m", "benchmarks.peers.sentence_transformers_app", str(model), "--port", "{port}")
    ways: Ways = {
        "passive threads": ((), PASSIVE),
        "torch's threads": ((), {}),
        "1 thread": (("--threads", "1"), {}),
    }
    return _by_precision("sentence-transformers", app, ways, found)


def infinity(model: Path) -> list[ServerUnderTest]:
    """Return infinity-emb, by precision."""
    if not INFINITY.is_file():
        raise CseError(
            f"infinity-emb needs an environment of its own, and {INFINITY} is missing; run: make benchmark-serve\n"
            "or measure without it: python -m benchmarks.serve --peers sentence-transformers"
        )
    asked = [str(INFINITY), "-c", _VERSIONS, *_INFINITY_PACKAGES]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CseError(f"{INFINITY}: {done.stderr.strip().splitlines()[-1]}")
    run = (str(INFINITY.with_name("infinity_emb")), "v2", "--model-id", str(model), "--host", "127.0.0.1")
    served = (*run, "--port", "{port}", "--device", "cpu", "--log-level", "warning", "--engine", "torch")
    plain = ("--no-bettertransformer", "--no-compile")
    better = ("--bettertransformer", "--no-compile")
    compiled = ("--no-bettertransformer", "--compile")
    ways: Ways = {
        "plain, passive threads": (plain, PASSIVE),
        "plain": (plain, {}),
        "plain, passive threads, batches of 64": ((*plain, "--batch-size", "64"), PASSIVE),
        "BetterTransformer, passive threads": (better, PASSIVE),
        "torch.compile, passive threads": (compiled, PASSIVE),
    }
    return _by_precision("infinity torch", served, ways, json.loads(done.stdout), "/embeddings")


def _by_precision(
    name: str, run: tuple[str, ...], ways: Ways, found: dict[str, str], route: str = "/v1/embeddings"
) -> list[ServerUnderTest]:
    servers = []
    for dtype, tolerance in (("float32", 1e-3), ("bfloat16", BFLOAT16_TOLERANCE)):
        settings = tuple(
            Setting(way, (*run, "--dtype", dtype, *more), variables) for way, (more, variables) in ways.items()
        )
        servers.append(ServerUnderTest(f"{name} {dtype}", settings, route, tolerance, {"versions": found}))
    return servers
