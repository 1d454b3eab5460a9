"""A bank of 10,000 domains behind ``cse serve``, in one run on one machine; run it while the machine is idle.

    python -m benchmarks.many_domains                                # minutes; 2.4 GB of disk
    python -m benchmarks.many_domains --bank /tmp/bank               # keep the bank there for the next run
    python -m benchmarks.many_domains --domains 300 --serve 50 --seconds 3
    python -m benchmarks.many_domains --tiny --answers 1000000 --every 0.1    # so many, all checked

MiniLM with prompts of 12 keys and values per layer and eight centres, drawn at random. Clients ask for random domains
of ``--serve``: one text in base64, eight texts as numbers, one text of TEI. Rounds without and with one domain replaced
each second alternate. Every vector of every answer is compared with those of its domain that were in force between the
request and its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.asking import Asking, LoadError, new_loop
from benchmarks.bank import trained_encoder, variant
from benchmarks.load import Load, LoadPlan, percentile, read_vectors
from benchmarks.machine import machine
from benchmarks.random_bert import SHAPES, save_bert
from benchmarks.servers import Running, ServerUnderTest, Setting, running
from cse import OnnxEncoder
from cse.export.bank import create_bank, make_domain
from cse.export.domains import add_domain
from cse.model.named import MINILM
from cse.runtime.bank import DOMAINS, read_bank_manifest
from cse.runtime.domain import SUFFIX, read_domain

TEXT, CENTRES, TOLERANCE = "Why was my card declined at the supermarket?", 8, 1e-5
EIGHT = 8  # texts of a larger request


def build(root: Path, count: int, tiny: bool) -> None:
    """Write an empty bank and one of ``count`` domains, unless they are there."""
    if (root / "full").is_dir() and len(list((root / "full" / DOMAINS).iterdir())) == count:
        return
    shutil.rmtree(root / "full", ignore_errors=True)
    model = str(save_bert(root / "model", SHAPES["tiny"])) if tiny else MINILM
    encoder = trained_encoder(None, model)
    create_bank(encoder, root / "full", tolerance=1e-5)
    shutil.copytree(root / "full", root / "empty", dirs_exist_ok=True)
    drawn = np.random.default_rng(0).normal(size=(CENTRES, encoder.dimension)).astype(np.float32)
    one = make_domain(encoder, "d", centres=drawn)
    for number in range(count):
        name = f"domain-{number:05d}"
        variant(one, name, number).write(root / "full" / DOMAINS / f"{name}{SUFFIX}")


class Known:
    """The vectors of the text by domain, each with the time from which an older one is wrong."""

    def __init__(self, bank: Path, empty: OnnxEncoder, names: list[str]) -> None:
        self.bank, self.empty, self.names = bank, empty, names
        self.replaced = 0
        self.adding: list[float] = []  # seconds
        self.versions: dict[str, list[tuple[float, np.ndarray]]] = {}
        shape = read_bank_manifest(bank).shape
        for name in names:
            self.like = read_domain(bank / DOMAINS / f"{name}{SUFFIX}", shape)
            self.versions[name] = [(0.0, empty.encode(TEXT, domain=self.like))]

    def right(self, name: str, vectors: np.ndarray, begin: float) -> bool:
        """Return whether each vector is of one version in force after ``begin``, and all of the same."""
        known = self.versions[name]
        later = [when for when, _ in known[1:]] + [float("inf")]
        allowed = [one for (_, one), end in zip(known, later, strict=True) if end > begin]
        return any(np.abs(vectors - one).max() < TOLERANCE for one in allowed)

    def replace(self) -> None:
        """Replace the next domain."""
        name = self.names[self.replaced % len(self.names)]
        new = variant(self.like, name, 1_000_000 + random.getrandbits(24))
        self.versions[name].append((float("inf"), vector := self.empty.encode(TEXT, domain=new)))
        begin = time.perf_counter()
        add_domain(self.bank, new, replace=True)
        done = time.perf_counter()
        self.versions[name][-1] = done, vector
        self.adding.append(done - begin)
        self.replaced += 1


class Churn(Load):
    """Clients that ask for random domains in three ways and check every answer."""

    def __init__(self, port: int, known: Known, clients: int, seed: int) -> None:
        self.asks: list[tuple[str, int]] = []
        self.wrong = 0
        requests, vectors = [], {"openai": 1, "many": EIGHT, "tei": 1}
        for name in known.names:
            for kind, count in vectors.items():
                route = "/embed" if kind == "tei" else "/v1/embeddings"
                body = {"model": name, ("inputs" if kind == "tei" else "input"): [TEXT] * count}
                body |= {"encoding_format": "base64"} if kind == "openai" else {}
                content = json.dumps(body).encode()
                head = f"POST {route} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                requests.append(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
                self.asks.append((name, count))
        super().__init__(LoadPlan("127.0.0.1", port, requests), clients, 60.0)
        self.known, self.draw = known, random.Random(seed)

    def next_request(self) -> int:
        """Return a random request: of ten, seven of one text, two of TEI, one of eight texts."""
        kind = self.draw.choices((0, 1, 2), (7, 1, 2))[0]
        return 3 * self.draw.randrange(len(self.known.names)) + kind

    def answered(self, number: int, status: int, body: bytes, seconds: float) -> None:
        """Count an answer, and compare it."""
        if not self.measuring:
            return
        found, (name, count) = self.measured, self.asks[number]
        if status != 200:
            found.errors[str(status)] += 1
        else:
            vectors = np.array(json.loads(body)) if number % 3 == 2 else read_vectors(body)
            begin = time.perf_counter() - seconds
            self.wrong += vectors.shape[0] != count or not self.known.right(name, vectors, begin)
            found.latencies.append(seconds)
        self._count_to_the_end()


def load(server: Running, known: Known, options: argparse.Namespace, churn: bool, answers: int = 0) -> dict[str, Any]:
    """Return the latencies, errors and wrong answers of one round."""
    over = threading.Event()

    async def run() -> tuple[Churn, Any]:
        made = Churn(server.port, known, options.clients, random.getrandbits(16))
        return made, await made.run(1.0, options.seconds, answers or None)

    thread = threading.Thread(target=replacing, args=(known, over, options.every))
    before = known.replaced
    if churn:
        thread.start()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        made, found = runner.run(run())
    over.set()
    if churn:
        thread.join()
    return {
        "latencies": found.latencies, "errors": dict(found.errors), "wrong": made.wrong,
        "seconds": found.seconds, "replaced": known.replaced - before,
    }  # fmt: skip


def replacing(known: Known, over: threading.Event, every: float) -> None:
    """Replace a domain every so many seconds."""
    while not over.wait(every):
        known.replace()


def timed(ask: Callable[[], Any], times: int = 1) -> list[float]:
    """Return the milliseconds of each of some questions."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        ask()
        found.append(1e3 * (time.perf_counter() - begin))
    return found


def measure(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a bank of many domains."""
    figures: dict[str, Any] = {"machine": machine(), "domains": options.domains, "served": options.serve}
    every = [f"domain-{number:05d}" for number in range(options.domains)]
    draw = random.Random(0)
    draw.shuffle(every)
    served, cold = every[: options.serve], every[options.serve : options.serve + options.cold]
    known = Known(root / "full", OnnxEncoder(root / "empty", threads=1), served)
    command = (sys.executable, "-m", "cse.cli", "serve", str(root / "full"), "--port", "{port}", "--threads", "1")
    with running(ServerUnderTest("cse serve", (Setting("", command),)), start_seconds=600) as server:
        figures["start_s"] = server.cold_start_s
        figures["memory_start_megabytes"] = server.memory_megabytes()
        asking = Asking("127.0.0.1", server.port, timeout=120)

        def ask(name: str, texts: int = 1) -> None:
            asking.ask("/v1/embeddings", {"model": name, "input": [TEXT] * texts, "encoding_format": "base64"})

        first = [timed(lambda name=name: ask(name))[0] for name in served]  # type: ignore[misc]
        figures["memory_megabytes"] = server.memory_megabytes()
        if options.cold:
            figures["first_p50_ms"] = statistics.median(first)
            twice = [timed(lambda name=name: ask(name), 2) for name in cold]  # type: ignore[misc]
            figures["cold_p50_ms"] = statistics.median(times[0] for times in twice)
            figures["warm_p50_ms"] = statistics.median(times[1] for times in twice)
            figures["cold_over_warm_p50_ms"] = statistics.median(times[0] - times[1] for times in twice)
        rounds: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for churn in (False, True):
                rounds[churn].append(load(server, known, options, churn))
        for churn, those in rounds.items():
            together = [one for found in those for one in found["latencies"]]
            name = "replaced" if churn else "still"
            figures[name] = {
                "answers": len(together), "p50_ms": 1e3 * percentile(together, 50),
                "p99_ms": 1e3 * percentile(together, 99), "wrong": sum(one["wrong"] for one in those),
                "errors": [one["errors"] for one in those], "replaced": sum(one["replaced"] for one in those),
            }  # fmt: skip
        for part in (50, 99):  # of neighbours in time
            pairs = zip(rounds[True], rounds[False], strict=True)
            ratios = [percentile(a["latencies"], part) / percentile(b["latencies"], part) for a, b in pairs]
            figures[f"p{part}_ratio"] = statistics.median(ratios)
        if options.answers:
            found = load(server, known, options, True, options.answers)
            figures["long"] = {key: value for key, value in found.items() if key != "latencies"} | {
                "answers": len(found["latencies"])
            }
        figures["memory_after_megabytes"] = server.memory_megabytes()
        over = threading.Event()
        thread = threading.Thread(target=replacing, args=(known, over, options.every))
        thread.start()
        asking = Asking("127.0.0.1", server.port, timeout=120)  # the server has closed the idle one
        try:
            figures["models_ms"] = timed(lambda: asking.ask("/v1/models"), options.lists)
            figures["auto_first_ms"] = timed(lambda: ask("auto", 64))[0]
            figures["auto_64_p50_ms"] = statistics.median(timed(lambda: ask("auto", 64), 9))
            figures["named_64_p50_ms"] = statistics.median(timed(lambda: ask(served[0], 64), 9))
        except (OSError, LoadError) as error:
            figures["failed"] = repr(error)
        over.set()
        thread.join()
        figures["memory_auto_megabytes"] = server.memory_megabytes()
    figures["add_median_ms"] = 1e3 * statistics.median(known.adding)
    return figures


def main() -> None:
    """Print the figures as JSON, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=10_000, help="default: 10000")
    parser.add_argument("--serve", type=int, default=500, help="domains that are asked for; default: 500")
    parser.add_argument("--cold", type=int, default=200, help="domains asked for once, as a first answer; default: 200")
    parser.add_argument("--clients", type=int, default=4, help="default: 4")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round; default: 10")
    parser.add_argument("--rounds", type=int, default=3, help="without and with replacement; default: 3")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between replacements; default: 1")
    parser.add_argument("--answers", type=int, default=0, help="a last round of so many answers under replacement")
    parser.add_argument("--tiny", action="store_true", help="a random BERT of two layers: many answers, not costs")
    parser.add_argument("--lists", type=int, default=20, help="questions for GET /v1/models; default: 20")
    parser.add_argument("--bank", type=Path, help="keep the bank in this folder; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = options.bank or Path(place)
        build(root, options.domains, options.tiny)
        figures = measure(root, options)
    text = json.dumps(figures, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
