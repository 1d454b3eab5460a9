"""How well domain ``auto`` chooses, and what a wrong choice costs, on the dev pairs of a bank's own domains.

    python -m benchmarks.domain_choice data/bank data/domains

For each domain that has dev pairs in DOMAINS/NAME/prepared (see stage ``domain``): the share of its dev sentences for
which ``auto`` chooses it, and the dev score (Spearman * 100) with its own prompts, with ``auto`` and with the bare
backbone. A pair is scored with the prompts that each of its sentences was given, so two domains may meet in one pair.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from cse import OnnxEncoder
from cse.data.store import PreparedData
from cse.data.tasks.kinds import ScoredPairs
from cse.data.tasks.store import open_dev
from cse.evaluation.measures import pair_cosines, spearman
from cse.evaluation.table import format_rows
from cse.runtime.domain import AUTO, Domain


def main() -> None:
    """Print a table; ``--json`` also writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bank", type=Path)
    parser.add_argument("domains", type=Path, help="parent of the domains' folders")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    encoder = OnnxEncoder(options.bank)
    if encoder.bank is None:
        raise SystemExit(f"{options.bank}: a bundle of one model, not a bank")
    figures: dict[str, dict[str, float]] = {}
    for name in encoder.bank.domains().usable:
        dev = open_dev(PreparedData(options.domains / name / "prepared"))
        if not isinstance(dev, ScoredPairs):
            continue
        sentences = [*dev.sentence1, *dev.sentence2]
        chosen = encoder.encode_counting(sentences, domain=AUTO, normalize=True)
        figures[name] = {
            "sentences": len(sentences),
            "chosen rightly (%)": 100 * float(np.mean([one == name for one in chosen.domains])),
            "own prompts": score(encoder, sentences, name, dev.score),
            "auto": score(encoder, sentences, AUTO, dev.score),
            "bare": score(encoder, sentences, encoder.bank.bare, dev.score),
        }
    heads = ["domain", *next(iter(figures.values()))]
    rows = [[name, *(f"{value:.2f}" for value in found.values())] for name, found in figures.items()]
    print(format_rows([heads, *rows], "text"), end="")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def score(encoder: OnnxEncoder, sentences: list[str], domain: str | Domain, gold: np.ndarray) -> float:
    """Return Spearman * 100 between the cosines of the first half with the second half and the gold scores."""
    vectors = encoder.encode(sentences, domain=domain, normalize=True)
    return 100 * spearman(pair_cosines(vectors[: len(gold)], vectors[len(gold) :]), gold)


if __name__ == "__main__":
    main()
