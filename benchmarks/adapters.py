"""What biases and low-rank updates by row cost in a bank: rates as shares of the bare backbone's.

    python -m benchmarks.adapters                                # MiniLM, generated sentences, batches of 64
    python -m benchmarks.adapters --triplets nli_for_simcse.csv  # the sentences of your own triplets

Each row of a batch is of another domain, with numbers drawn at random: speed does not depend on them. Each kind of
domain is in a bank that takes it and no more. Contestants alternate, on one core, so that other load slows all alike;
medians of the ratios are shown, with the least and the most. Times are of the processor, tokens and inputs included.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from transformers.utils.logging import disable_progress_bar

from benchmarks.bank import LENGTH, trained_encoder
from benchmarks.record import table
from benchmarks.rounds import interleave, ratio
from benchmarks.texts import add_texts, sentences_of
from cse import OnnxEncoder, SentenceEncoder
from cse.export.bank import create_bank
from cse.runtime.bank import DOMAINS, read_bank_manifest
from cse.runtime.domain import DOMAIN_FORMAT, SUFFIX, Domain, DomainFacts, hashes_of, update_shapes

# layers whose low-rank updates the bank takes (None: no adapters), and the rank and prompt vectors of its domains
KINDS: dict[str, tuple[list[str] | None, int, int]] = {
    "bare": (None, 0, 0),
    f"{LENGTH} prompts": (None, 0, LENGTH),
    "biases": ([], 0, 0),
    "bare, in a bank of [query, value]": (["query", "value"], 0, 0),
    **{f"LoRA of [query, value], rank {rank}": (["query", "value"], rank, 0) for rank in (1, 4, 8, 16)},
    "bare, in a bank of [all]": (["all"], 0, 0),
    **{f"LoRA of [all], rank {rank}": (["all"], rank, 0) for rank in (1, 2, 4, 8)},
}


def bank_of(folder: Path, encoder: SentenceEncoder, adapters: list[str] | None) -> Path:
    """Create an empty bank, unless it is there."""
    if not folder.exists():
        create_bank(encoder, folder, tolerance=1e-5, adapters=adapters)
    return folder


def fill(bank: Path, kind: str, count: int) -> list[str]:
    """Write domains of a kind into a bank; return their names."""
    (_, rank, length), shape = KINDS[kind], read_bank_manifest(bank).shape
    random, names = np.random.default_rng(0), [f"d{list(KINDS).index(kind)}-{number}" for number in range(count)]
    for name in names:
        sizes = (shape.positions - length, shape.dimension, shape.words)
        facts = DomainFacts(DOMAIN_FORMAT, name, shape.backbone, "mean", True, length, *sizes, {})
        facts = dataclasses.replace(facts, adapters=list(shape.adapters))
        shapes: dict[str, tuple[int, ...]] = {"prompt": (2 * shape.layers, shape.heads, length, shape.head_size)}
        if shape.updates and not kind.startswith("bare"):
            shapes |= update_shapes(shape.updates, rank)
        tensors = {key: random.normal(scale=0.02, size=size).astype(np.float32) for key, size in shapes.items()}
        facts = dataclasses.replace(facts, hashes=hashes_of(tensors))
        Domain(facts, **tensors).write(bank / DOMAINS / f"{name}{SUFFIX}")
    return names


def seconds(encoder: OnnxEncoder, texts: list[str], domains: list[str], size: int) -> float:
    """Return the processor's seconds for texts in batches of a size."""
    begin = time.process_time()
    encoder.encode(texts, size, domain=domains)
    return time.process_time() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch, each of another domain; default: 64")
    parser.add_argument("--sentences", type=int, default=512, help="default: 512")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help="of the table; bare is always there")
    add_texts(parser)
    options = parser.parse_args()
    disable_progress_bar()
    texts, encoder = sentences_of(options.sentences, options.triplets), SentenceEncoder(trained_encoder(None).backbone)
    runs: dict[str, Callable[[], float]] = {}
    with tempfile.TemporaryDirectory() as place:
        opened: dict[Path, OnnxEncoder] = {}
        for kind, (adapters, *_) in KINDS.items():
            if kind not in {"bare", *(options.only or KINDS)}:
                continue
            bank = bank_of(Path(place) / "-".join(adapters or [str(adapters)]), encoder, adapters)
            opened.setdefault(bank, OnnxEncoder(bank, provider="cpu", threads=1, kept_bytes=2**31))
            names = fill(bank, kind, options.batch)
            domains = [names[row % len(names)] for row in range(len(texts))]
            runs[kind] = partial(seconds, opened[bank], texts, domains, options.batch)
            runs[kind]()  # reads the domains
        found = interleave(runs, options.rounds)
    rows = [
        (kind, f"{len(texts) / statistics.median(times):,.0f}", str(ratio(found["bare"], times)))
        for kind, times in found.items()
    ]
    print(table(("domains", "sentences/s", "share of bare"), rows))


if __name__ == "__main__":
    main()
