"""``cse serve`` against other servers of the same model, measured in one run on one machine; run it while it is idle.

    make benchmark-serve                                              # makes infinity's environment, then runs all
    python -m benchmarks.serve                                        # about an hour on two cores
    python -m benchmarks.serve --peers sentence-transformers --rounds 1 --seconds 1  # without infinity, a short try

Model: all-MiniLM-L6-v2, from the same files for all; ours is its export. Peers: infinity-emb (torch in float32 and
bfloat16) and sentence-transformers behind FastAPI; first the settings of each, of ours the providers, are tried
for a few seconds with the most clients, and the fastest is kept. Clients are closed-loop (benchmarks/load.py), each
request holds one text of 1 to 100 words, nothing is truncated. In every round each is started anew; ratios are of one
round, medians over the rounds. A sample of all vectors is compared with the exported model's. Also: the time from start
to first vector.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import load, peers
from benchmarks.harness import facts, parser_of, run, say, table
from benchmarks.inputs import lengths_of, mixed_texts
from benchmarks.servers import Running, ServerUnderTest, Setting, running
from cse import OnnxEncoder, SentenceEncoder
from cse.errors import CseError
from cse.export.bundle import write_bundle
from cse.model.backbone_files import find_backbone
from cse.model.declared import MINILM
from cse.process import handling

OURS = (sys.executable, "-m", "cse", "serve", "{bundle}", "--host", "127.0.0.1", "--port", "{port}")
OPENVINO_TOLERANCE = 3e-3  # of products in bfloat16, whose sums are in float32
COLUMNS = ("requests_per_s", "p50_ms", "p99_ms")
PEERS = {"infinity": peers.infinity, "sentence-transformers": peers.sentence_transformers}
TRUNCATION = 256  # sentence-transformers' limit for this model; no text is longer, so nobody's limit matters
REFERENCES = 200
TEXTS = 20_000
CLIENTS = (1, 16, 64)
WARM_UP_SECONDS, TRIAL_SECONDS = 2.0, 5.0


class Bench:
    """One run of the benchmark: what to measure, and the figures so far."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.bundle = options, folder / "bundle"
        self.texts = mixed_texts(TEXTS)
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

    def prepare(self) -> None:
        """Export the model and compute the references."""
        self.say("exporting the model")
        with write_bundle(SentenceEncoder.load(MINILM), self.bundle, normalize=True, metrics={}):
            pass
        longest = max(lengths_of(self.texts, find_backbone(MINILM).folder, 10**6))
        if longest > TRUNCATION:
            raise CseError(f"a text has {longest} tokens, more than {TRUNCATION}, where servers would truncate it")
        encoder = OnnxEncoder(self.bundle, provider="cpu")
        self.references = encoder.encode(self.texts[: REFERENCES * load.CHECK_EVERY : load.CHECK_EVERY])

    def contestants(self) -> tuple[ServerUnderTest, list[ServerUnderTest]]:
        """Return ours and the peers."""
        command = [str(self.bundle) if part == "{bundle}" else part for part in OURS]
        settings = (
            Setting("openvino", (*command, "--device", "openvino"), tolerance=OPENVINO_TOLERANCE),
            Setting("cpu", (*command, "--device", "cpu")),
        )
        found: list[ServerUnderTest] = []
        for name, make in PEERS.items():
            if name in self.options.peers:
                found += make(find_backbone(MINILM).folder)
        return ServerUnderTest("cse serve", settings), found

    def load(self, contestant: ServerUnderTest, server: Running, clients: int, seconds: float) -> dict[str, Any]:
        """Load a server and return the figures."""
        requests = load.build_requests(self.texts, server.model)
        figures = load.measure(
            f"http://127.0.0.1:{server.port}{contestant.route}", requests, self.references, self.tolerance(contestant),
            clients=clients, warm_up=WARM_UP_SECONDS, seconds=seconds,
        )  # fmt: skip
        if load.faulty(figures):
            self.faults.append(f"{contestant.name}, {clients} clients: {figures}")
            self.say(f"FAULTY: {self.faults[-1]}")
        return figures

    def measure(self, contestant: ServerUnderTest) -> dict[str, float]:
        """Start a server, measure it with every number of clients, and end it; return the figures by name."""
        with running(contestant, self.chosen[contestant.name]) as server:
            found = {"cold_start_s": server.cold_start_s}
            for number in CLIENTS:
                one = self.load(contestant, server, number, self.options.seconds)
                found |= {f"{key}, {number} clients": one[key] for key in COLUMNS}
            found["memory_megabytes"] = server.memory_megabytes()
        self.say(f"{contestant.name}: {', '.join(f'{name} {value:.1f}' for name, value in found.items())}")
        return found

    def choose(self, contestant: ServerUnderTest) -> dict[str, Any]:
        """Try the settings of a contestant, keep the fastest, and return requests/s by setting."""
        rates: dict[str, float] = {}
        failed: dict[str, str] = {}
        for setting in contestant.settings:
            self.chosen[contestant.name] = setting
            try:
                with running(contestant, setting) as server:
                    figures = self.load(contestant, server, max(CLIENTS), min(TRIAL_SECONDS, self.options.seconds))
            except CseError as error:  # a setting that does not work here is no candidate
                failed[setting.name] = str(error)
                self.say(f"trial of {contestant.name}, {setting.name}: does not work: {str(error).splitlines()[-1]}")
                continue
            if load.faulty(figures):
                failed[setting.name] = self.faults.pop()
                continue
            rates[setting.name] = figures["requests_per_s"]
            self.say(f"trial of {contestant.name}, {setting.name}: {rates[setting.name]:.1f} requests/s")
        if not rates:
            raise CseError(f"{contestant.name}: no setting works:\n{failed[contestant.settings[0].name]}")
        best = max(rates, key=rates.__getitem__)
        self.chosen[contestant.name] = next(one for one in contestant.settings if one.name == best)
        return {"requests_per_s": rates, "failed": failed}

    def run(self) -> dict[str, Any]:
        """Measure everything and return the figures."""
        ours, others = self.contestants()  # first, as a peer may be missing
        figures = facts("cpu") | {"model": MINILM}
        self.prepare()
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
        rounds: list[dict[str, dict[str, float]]] = []  # of each, the figures of each contestant
        for number in range(self.options.rounds):
            self.say(f"round {number + 1} of {self.options.rounds}")
            rounds.append({one.name: self.measure(one) for one in (ours, *others)})
        medians = {
            name: {key: statistics.median(each[name][key] for each in rounds) for key in rounds[0][name]}
            for name in rounds[0]
        }
        against = {
            peer.name: {
                key: statistics.median(over(each[ours.name][key], each[peer.name][key]) for each in rounds)
                for key in medians[peer.name]
            }
            for peer in others
        }
        ratios = {f"{key} / {name}": value for name, found in against.items() for key, value in found.items()}
        figures |= {"rounds": rounds, "medians": medians, "ratios": ratios, "faults": self.faults}
        settings = "\n".join(f"setting of {name}: {one.name}" for name, one in self.chosen.items())
        return figures | {"table": f"{shown(medians, against)}\n{settings}"}


def over(ours: float, peer: float) -> float:
    """Return a ratio; NaN if the other side did nothing."""
    return ours / peer if peer else math.nan


def shown(medians: dict[str, dict[str, float]], against: dict[str, dict[str, float]]) -> str:
    """Return the figures as a table: a row per server, and ours / peer."""

    def cells(found: dict[str, float], form: str) -> list[str]:
        rates = ["; ".join(format(found[f"{key}, {number} clients"], form) for key in COLUMNS) for number in CLIENTS]
        return [*rates, *(format(found[key], form) for key in ("cold_start_s", "memory_megabytes"))]

    lines = [(name, *cells(found, ".1f")) for name, found in medians.items()]
    lines += [(f"ours / {name}", *cells(found, ".2f")) for name, found in against.items()]
    head = ("requests/s; p50; p99 in ms", *(f"{number} clients" for number in CLIENTS), "start, s", "memory, MB")
    return table(head, lines)


def main() -> int:
    """Print the table and keep the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="some of them")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured, by server and clients")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: give 1 or more")

    def measure() -> dict[str, Any]:
        with handling(_stop, signal.SIGTERM), tempfile.TemporaryDirectory() as place:
            return Bench(options, Path(place)).run()

    return run("serve", measure)


def _stop(number: int) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
