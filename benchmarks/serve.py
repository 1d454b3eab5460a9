"""``cse serve`` against other servers of the same model, measured in one run on one machine; run it while it is idle.

    make benchmark-serve                                              # makes infinity's environment, then runs all
    python -m benchmarks.serve                                        # about an hour on two cores
    python -m benchmarks.serve --quick --peers sentence-transformers  # a short try

Model: all-MiniLM-L6-v2, from the same files for all; ours is its export. Peers: infinity-emb (torch in float32 and
bfloat16) and sentence-transformers behind FastAPI; first the settings of each, of ours the providers, are tried
for a few seconds with the most clients, and the fastest is kept. Clients are closed-loop (benchmarks/load.py), each
request holds one text of 1 to 100 words, nothing is truncated. In every round ours and each peer take turns, each
started anew; ratios are of neighbours, medians over the rounds. A sample of all vectors is compared with the exported
model's. Also: the time from start to first vector.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.asking import LoadError
from benchmarks.harness import environment, facts, parser_of, run, say, table
from benchmarks.inputs import lengths_of
from benchmarks.load import CHECK_EVERY, faulty
from benchmarks.mixed_texts import DISTRIBUTION, histogram, mixed_texts
from benchmarks.servers import Running, ServerUnderTest, Setting, running
from cse import OnnxEncoder, SentenceEncoder
from cse.export.bundle import write_bundle
from cse.model.backbone_files import find_backbone
from cse.model.named import MINILM
from cse.process import handling

OURS = (sys.executable, "-m", "cse.cli", "serve", "{bundle}", "--host", "127.0.0.1", "--port", "{port}")
OPENVINO_TOLERANCE = 3e-3  # of products in bfloat16, whose sums are in float32
COLUMNS = ("requests_per_s", "p50_ms", "p99_ms")
PEERS = ("infinity", "sentence-transformers")
TRUNCATION = 256  # sentence-transformers' limit for this model; no text is longer, so nobody's limit matters
REFERENCES = 200
TRIAL_SECONDS = 5.0


class Bench:
    """One run of the benchmark: what to measure, and the figures so far."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.bundle, self.references = folder / "bundle", folder / "references.npy"
        self.begin = time.monotonic()
        self.faults: list[str] = []
        self.chosen: dict[str, Setting] = {}

    def tolerance(self, contestant: ServerUnderTest) -> float:
        """Return how far a number of a vector may be from the reference, in the chosen setting."""
        return self.chosen[contestant.name].tolerance or contestant.tolerance

    def say(self, text: str) -> None:
        """Print a line of progress with the time so far."""
        passed = int(time.monotonic() - self.begin)
        say(f"[{passed // 60:3}:{passed % 60:02}] {text}")

    def prepare(self) -> dict[str, Any]:
        """Export the model, compute the references, and return what the texts are."""
        self.say("exporting the model")
        with write_bundle(SentenceEncoder.load(MINILM), self.bundle, normalize=True, metrics={}):
            pass
        texts = mixed_texts()
        encoder = OnnxEncoder(self.bundle, provider=self.options.device)
        longest = max(lengths_of(texts, find_backbone(MINILM).folder, 10**6))
        if longest > TRUNCATION:
            raise LoadError(f"a text has {longest} tokens, more than {TRUNCATION}, where servers would truncate it")
        np.save(self.references, encoder.encode(texts[: REFERENCES * CHECK_EVERY : CHECK_EVERY]))
        told = {"count": len(texts), "distribution": DISTRIBUTION, "longest_tokens": longest}
        return told | {"words_histogram": histogram(texts)}

    def contestants(self) -> tuple[ServerUnderTest, list[ServerUnderTest]]:
        """Return ours and the peers."""
        command = [str(self.bundle) if part == "{bundle}" else part for part in OURS]
        settings = tuple(
            Setting(each, (*command, "--provider", each), tolerance=OPENVINO_TOLERANCE if each == "openvino" else None)
            for each in (self.options.providers if self.options.device == "cpu" else ["cuda"])
        )
        found: list[ServerUnderTest] = []
        for name, make in (("infinity", peers.infinity), ("sentence-transformers", peers.sentence_transformers)):
            if name in self.options.peers:
                found += make(find_backbone(MINILM).folder, self.options.device)
        return ServerUnderTest("cse serve", settings), found

    def load(self, contestant: ServerUnderTest, server: Running, clients: int, **changes: Any) -> dict[str, Any]:
        """Run the load generator in a process of its own and return its figures."""
        out = self.folder / "load.json"
        out.unlink(missing_ok=True)
        given: dict[str, Any] = {
            "kind": contestant.kind,
            "clients": clients,
            "seconds": self.options.seconds,
            "warm-up": self.options.warm_up,
            "references": self.references,
            "tolerance": self.tolerance(contestant),
            "json": out,
        } | changes
        command = [sys.executable, "-m", "benchmarks.load", server.url]
        command += [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
        if not out.is_file():
            raise LoadError(f"{contestant.name}, {clients} clients: {done.stderr.strip()[-1000:]}")
        figures = json.loads(out.read_text(encoding="utf-8"))
        if faulty(figures):
            self.faults.append(f"{contestant.name}, {clients} clients: {done.stdout.strip()}")
            self.say(f"FAULTY: {self.faults[-1]}")
        return figures

    def measure(self, contestant: ServerUnderTest) -> dict[str, Any]:
        """Start a server, measure it with every number of clients, and end it."""
        with running(contestant, self.chosen[contestant.name]) as server:
            found: dict[str, Any] = {"cold_start_s": server.cold_start_s}
            found["clients"] = {str(n): self.load(contestant, server, n) for n in self.options.clients}
            found["memory_megabytes"] = server.memory_megabytes()
        rates = ", ".join(f"{n}: {one['requests_per_s']:.1f}" for n, one in found["clients"].items())
        self.say(f"{contestant.name}: requests/s by clients {rates}; first vector after {found['cold_start_s']:.1f} s")
        return found

    def choose(self, contestant: ServerUnderTest) -> dict[str, Any]:
        """Try the settings of a contestant, keep the fastest, and return requests/s by setting."""
        self.chosen[contestant.name] = contestant.settings[0]
        if len(contestant.settings) == 1 or not self.options.trials:
            return {}
        rates: dict[str, float] = {}
        failed: dict[str, str] = {}
        for setting in contestant.settings:
            self.chosen[contestant.name] = setting
            try:
                with running(contestant, setting) as server:
                    figures = self.load(contestant, server, max(self.options.clients), seconds=TRIAL_SECONDS)
            except LoadError as error:  # a setting that does not work here is no candidate
                failed[setting.name] = str(error)
                self.say(f"trial of {contestant.name}, {setting.name}: does not work: {str(error).splitlines()[-1]}")
                continue
            if faulty(figures):
                failed[setting.name] = self.faults.pop()
                continue
            rates[setting.name] = figures["requests_per_s"]
            self.say(f"trial of {contestant.name}, {setting.name}: {rates[setting.name]:.1f} requests/s")
        if not rates:
            raise LoadError(f"{contestant.name}: no setting works:\n{failed[contestant.settings[0].name]}")
        best = max(rates, key=rates.__getitem__)
        self.chosen[contestant.name] = next(one for one in contestant.settings if one.name == best)
        return {"requests_per_s": rates, "failed": failed}

    def run(self) -> dict[str, Any]:
        """Measure everything and return the figures."""
        ours, others = self.contestants()  # first, as a peer may be missing
        figures = facts(self.options.device) | {"model": MINILM, "texts": self.prepare()}
        trials = {one.name: self.choose(one) for one in (ours, *others)}
        figures["contestants"] = {
            one.name: {
                "setting": self.chosen[one.name].name,
                "command": self.chosen[one.name].command,
                "environment": self.chosen[one.name].environment,
                "tolerance": self.tolerance(one),
                "trials": trials[one.name],
                **one.facts,
            }
            for one in (ours, *others)
        }
        rounds: list[dict[str, Any]] = []
        figures["rounds"] = rounds
        for number in range(self.options.rounds):
            self.say(f"round {number + 1} of {self.options.rounds}")
            found: dict[str, Any] = {"pairs": {}}
            if not others:
                found["pairs"][""] = {"ours": self.measure(ours)}
            for peer in others:
                found["pairs"][peer.name] = {"ours": self.measure(ours), "peer": self.measure(peer)}
            rounds.append(found)
        figures["medians"] = medians(rounds)
        figures["against"] = ratios(rounds)
        figures["ratios"] = {
            f"{key} / {name}, {number} clients": value
            for name, found in figures["against"].items()
            for number, one in found.items()
            for key, value in one.items()
        }
        return figures | {"faults": self.faults, "table": shown(figures)}


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over all rounds, by contestant."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for found in rounds:
        for name, pair in found["pairs"].items():
            runs.setdefault("cse serve", []).append(pair["ours"])
            if "peer" in pair:
                runs.setdefault(name, []).append(pair["peer"])
    result: dict[str, Any] = {}
    for name, those in runs.items():
        result[name] = {
            key: statistics.median(one[key] for one in those) for key in ("cold_start_s", "memory_megabytes")
        }
        result[name]["clients"] = {
            number: {
                key: statistics.median(one["clients"][number][key] for one in those)
                for key in ("requests_per_s", "texts_per_s", "p50_ms", "p99_ms")
            }
            for number in those[0]["clients"]
        }
    return {"servers": result}


def ratios(rounds: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return ours / peer by peer and number of clients: requests/s, p50, p99; medians over neighbours in time."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, first in rounds[0]["pairs"].items():
        if "peer" not in first:
            continue
        found[name] = {
            number: {
                key: statistics.median(
                    over(*(one["pairs"][name][side]["clients"][number][key] for side in ("ours", "peer")))
                    for one in rounds
                )
                for key in COLUMNS
            }
            for number in first["ours"]["clients"]
        }
    return found


def over(ours: float, peer: float) -> float:
    """Return a ratio; NaN if the other side did nothing."""
    return ours / peer if peer else math.nan


def shown(figures: dict[str, Any]) -> str:
    """Return the figures as a table: a row per server, and ours / peer."""

    def cells(found: dict[str, dict[str, float]], form: str) -> list[str]:
        return ["; ".join(format(one[key], form) for key in COLUMNS) for one in found.values()]

    servers = figures["medians"]["servers"]
    numbers = list(next(iter(servers.values()))["clients"])
    lines = [
        (name, *cells(found["clients"], ".1f"), f"{found['cold_start_s']:.1f}", f"{found['memory_megabytes']:.0f}")
        for name, found in servers.items()
    ]
    lines += [(f"ours / {name}", *cells(found, ".2f"), "", "") for name, found in figures["against"].items()]
    head = ("requests/s; p50; p99 in ms", *(f"{number} clients" for number in numbers), "start, s", "memory, MB")
    settings = [f"setting of {name}: {one['setting']}" for name, one in figures["contestants"].items()]
    return "\n".join([table(head, lines), *settings])


def main() -> int:
    """Print the table and keep the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="some of them")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64], help="at once")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, by server and clients")
    parser.add_argument("--warm-up", type=float, default=2.0, metavar="SECONDS", help="not measured")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of all servers")
    parser.add_argument(
        "--providers", nargs="+", choices=["openvino", "cpu"], default=["openvino", "cpu"],
        help="ways to run ours on a CPU",
    )  # fmt: skip
    parser.add_argument("--no-trials", dest="trials", action="store_false", help="take each peer's first setting")
    parser.add_argument("--quick", action="store_true", help="one round of 2 seconds without trials")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.warm_up, options.trials = 1, 2.0, 1.0, False
    if min(options.rounds, *options.clients) < 1:
        parser.error("--rounds and --clients: give 1 or more")

    def measure() -> dict[str, Any]:
        with handling(_stop, signal.SIGTERM), tempfile.TemporaryDirectory() as place:
            return Bench(options, Path(place)).run()

    return run("serve", measure)


def _stop(number: int) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
