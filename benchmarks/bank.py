"""What a bank of prompts costs, measured in one run on one machine; run it while the machine is idle.

    python -m benchmarks.bank                            # speed, memory, and a minute of replacements under load
    python -m benchmarks.bank --seconds 5 --domains 100  # a quick look
    python -m benchmarks.bank --head 76                  # each domain with a head of its own, 76 numbers a vector

Backbone: MiniLM, with prompts of 12 keys and values per layer, drawn at random: speed does not depend on their values.
Speed compares a batch of 64 sentences of 64 domains, and of one domain, with the same batch in the domain's own bundle;
rounds are interleaved and the median ratio is shown. Memory is what a new process takes beyond the same process with an
empty bank. Under load, four threads encode sentences of random domains while one domain a second is replaced by other
prompts; each answer must be the vector of the old prompts or of the new ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import facts, interleave, listed, parser_of, ratio, run, timed
from cse import OnnxEncoder, SentenceEncoder
from cse.data.sample import sample_rows
from cse.export.bank import create_bank, make_domain
from cse.export.bundle import write_bundle
from cse.export.domains import add_domain
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.named import MINILM
from cse.model.post import LinearMap
from cse.model.prompts import Prompt
from cse.runtime.bank import DOMAINS
from cse.runtime.domain import Domain, hashes_of

LENGTH, BATCH, ROUNDS = 12, 64, 31
_OPEN = """
import sys, time, psutil
from cse import OnnxEncoder
begin = time.perf_counter()
bank = OnnxEncoder(sys.argv[1]).bank
print(time.perf_counter() - begin, psutil.Process().memory_info().rss)
"""


def trained_encoder(head: int | None, model: str = MINILM) -> SentenceEncoder:
    """Return a backbone with random key-value prompts and, if wanted, a head of so many numbers."""
    torch.manual_seed(0)
    backbone = load_backbone(find_backbone(model))
    prompt = Prompt("key_value", backbone, length=LENGTH, init_std=0.1)
    encoder = SentenceEncoder(backbone, prompt, pooler="mean", position_shift=False)
    if head is not None:
        drawn, width = np.random.default_rng(0), backbone.hidden_size
        encoder.post = LinearMap.of("linear", drawn.normal(scale=0.1, size=width), drawn.normal(size=(width, head)))
    return encoder


def variant(domain: Domain, name: str, seed: int) -> Domain:
    """Return a domain like another, with prompts and a head of its own."""
    drawn = np.random.default_rng(seed)
    tensors = {
        key: drawn.normal(scale=0.1, size=tensor.shape).astype(np.float32) for key, tensor in domain.tensors().items()
    }
    facts = dataclasses.replace(domain.facts, name=name, hashes=hashes_of(tensors))
    return dataclasses.replace(domain, facts=facts, **tensors)


def speed(bank: OnnxEncoder, bundle: OnnxEncoder, sentences: list[str], names: list[str]) -> dict[str, float]:
    """Return the times of the bank as multiples of the bundle's: a mixed batch, and a batch of one domain."""
    ways = {
        "bundle": lambda: timed(lambda: bundle.encode(sentences)),
        "mixed": lambda: timed(lambda: bank.encode(sentences, domain=names[: len(sentences)])),
        "one": lambda: timed(lambda: bank.encode(sentences, domain=names[0])),
    }
    interleave(ways, 3, quiet=True)  # warm up
    times = interleave(ways, ROUNDS, quiet=True)
    found = {f"{name}_over_bundle": ratio(times[name], times["bundle"]).median for name in ("mixed", "one")}
    return found | {"bundle_ms": 1e3 * statistics.median(times["bundle"])}


def least(folder: Path) -> tuple[float, int]:
    """Return the least seconds to open a bank in a new process, and the least memory in bytes, of three."""
    command = [sys.executable, "-c", _OPEN, str(folder)]
    done = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    return min(float(seconds) for seconds, _ in done), min(int(memory) for _, memory in done)


def under_load(folder: Path, domain: Domain, names: list[str], texts: list[str], seconds: float) -> dict[str, int]:
    """Encode while domains are replaced; count the answers, and those that no prompt in force gives."""
    bank = OnnxEncoder(folder, threads=1)
    versions: dict[str, list[np.ndarray]] = {}  # vectors of the text by domain, oldest first
    text = texts[0]
    for name in names:
        versions[name] = [bank.encode(text, domain=name)]
    counts = {"answers": 0, "wrong": 0, "errors": 0, "replaced": 0}
    lock, over = threading.Lock(), threading.Event()

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        while not over.is_set():
            chosen = draw.sample(names, 16)
            known = {name: len(versions[name]) for name in chosen}
            try:
                found = bank.encode([text] * 16, domain=chosen)
            except Exception as error:  # counted, whatever it is
                print(error, file=sys.stderr)
                with lock:
                    counts["errors"] += 1
                continue
            wrong = 0
            for name, vector in zip(chosen, found, strict=True):
                # the last known may not have been in force yet when the call began
                allowed = versions[name][max(0, known[name] - 2) :]
                wrong += not any(np.abs(vector[: len(one)] - one).max() < 1e-5 for one in allowed)
            with lock:
                counts["answers"] += 16
                counts["wrong"] += wrong

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = names[counts["replaced"] % len(names)]
        new = variant(domain, name, 10_000 + counts["replaced"])
        expected = bank.encode(text, domain=new)
        versions[name].append(expected)  # before the file is there: from now on it may be the answer
        add_domain(folder, new, replace=True)
        if np.abs(bank.encode(text, domain=name) - expected).max() >= 1e-5:
            counts["wrong"] += 1  # the next call must see it
        counts["replaced"] += 1
        time.sleep(max(0.0, 1.0 - (time.monotonic() - end + seconds) % 1.0))
    over.set()
    for thread in threads:
        thread.join()
    return counts


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Fill a bank, measure it, and return the figures."""
    rows = sample_rows("sentences", 1000, 0)
    sentences = list(dict.fromkeys(text for row in rows for text in row))[:BATCH]
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        encoder = trained_encoder(options.head)
        create_bank(encoder, root / "bank", tolerance=1e-5)
        with write_bundle(encoder, root / "bundle", normalize=True, metrics={}):
            pass
        domain = make_domain(encoder, "own")
        empty = least(root / "bank")
        adding, memory = [], {0: empty[1]}
        names = [f"domain-{number:04d}" for number in range(options.domains)]
        for number, name in enumerate(names):
            new = domain if number == 0 else variant(domain, name, number)
            new = dataclasses.replace(new, facts=dataclasses.replace(new.facts, name=name))
            adding.append(timed(partial(add_domain, root / "bank", new)))
            if number + 1 in (1, 10, 100):
                memory[number + 1] = least(root / "bank")[1]
        full = least(root / "bank")
        memory[options.domains] = full[1]
        own = sum(path.stat().st_size for path in (root / "bank" / DOMAINS).iterdir())
        bank, bundle = OnnxEncoder(root / "bank"), OnnxEncoder(root / "bundle")
        np.testing.assert_allclose(bank.encode(sentences, domain=names[0]), bundle.encode(sentences), atol=1e-5)
        figures: dict[str, Any] = {
            "domains": options.domains,
            "prompt_kilobytes": own / options.domains / 1e3,
            "bundle_megabytes": sum(path.stat().st_size for path in (root / "bundle").iterdir()) / 1e6,
            "memory_over_own_bytes": (full[1] - empty[1]) / own,
            "open_empty_s": empty[0],
            "open_s": full[0],
            "add_median_ms": 1e3 * statistics.median(adding),
            "add_slowest_ms": 1e3 * max(adding),
            "memory_megabytes": {count: round(taken / 1e6, 1) for count, taken in memory.items()},
            **speed(bank, bundle, sentences, names),
            "threads": bank.threads,
        }
        del bank, bundle
        figures["under_load"] = under_load(root / "bank", domain, names[:200], sentences, options.seconds)
    return facts("cpu") | figures | {"table": listed(figures)}


def main() -> int:
    """Print the figures and keep them."""
    parser = parser_of(__doc__)
    parser.add_argument("--domains", type=int, default=1000, help="in the bank")
    parser.add_argument("--seconds", type=float, default=60.0, help="of replacements under load")
    parser.add_argument("--head", type=int, metavar="NUMBERS", help="give each domain a head with vectors this long")
    return run("bank", lambda: measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
