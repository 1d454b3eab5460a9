"""Cost of evaluation compared with encoding: the STS tasks, and the bootstrap of CxC-STS.

    python -m benchmarks.evaluate                                            # generated pairs
    python -m benchmarks.evaluate --senteval SentEval/data/downstream --cxc cxc.csv

The lower bound for the STS tasks is one encoder call on their distinct sentences. Rounds are interleaved, so that other
load slows both; medians are shown, the ratio with least and most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.harness import facts, histogram, interleave, lengths_in_words, parser_of, ratio, run, table, timed
from benchmarks.inputs import lengths_with
from cse import OnnxEncoder
from cse.data.cxc import read_cxc
from cse.data.sample import sample_pairs
from cse.data.suite import read_senteval
from cse.data.tasks.kinds import sentences_of
from cse.evaluation.cxc import Bootstrap, score_cxc
from cse.evaluation.sts import evaluate_sts
from cse.evaluation.vectors import Vectors
from cse.model.named import MINILM
from cse.stages.open_model import open_model

ENCODE, EVALUATE = "encode", "evaluate"


class Random:
    """An encoder that costs nothing."""

    def encode(self, sentences: list[str], **_: object) -> np.ndarray:
        """Return random vectors."""
        return np.random.default_rng(0).normal(size=(len(sentences), 384)).astype(np.float32)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Encode and evaluate, and return the figures."""
    tasks = (
        read_senteval(given.senteval).sts
        if given.senteval
        else [sample_pairs(f"sample-{number}", given.pairs, seed=number) for number in range(2)]
    )
    model: Any = open_model(given.model)
    distinct = list(dict.fromkeys(sentences_of(tasks)))
    tokenizer = (
        Tokenizer.from_file(f"{given.model}/tokenizer.json") if isinstance(model, OnnxEncoder) else model.tokenizer
    )
    lengths = lengths_with(tokenizer, distinct, model.max_length)
    print(lengths_in_words(lengths, model.max_length), flush=True)
    runs = {
        ENCODE: lambda: timed(lambda: model.encode(distinct, batch_size=64, normalize=False)),
        EVALUATE: lambda: timed(lambda: evaluate_sts(model, tasks)),
    }
    seconds = interleave(runs, given.rounds)
    cost = ratio(seconds[EVALUATE], seconds[ENCODE])
    lines = [
        ("encode the distinct sentences", f"{statistics.median(seconds[ENCODE]):.1f}", "1"),
        (f"evaluate {len(tasks)} STS tasks", f"{statistics.median(seconds[EVALUATE]):.1f}", str(cost)),
    ]
    figures: dict[str, Any] = facts("cpu") | {
        "model": given.model,
        "tasks": [task.name for task in tasks],
        "sentences": len(distinct),
        "lengths": histogram(lengths),
        "seconds": seconds,
        "spread": (cost.least, cost.most),
        "ratios": {"evaluate / encode": cost.median},
    }
    if given.cxc:
        pairs = read_cxc(given.cxc)
        vectors = Vectors(Random(), [*pairs.sentence1, *pairs.sentence2])
        for how in (Bootstrap(), Bootstrap("caption", replace=False)):
            taken = timed(partial(score_cxc, vectors, pairs, how))
            name = f"CxC-STS after encoding, {how.repetitions:,} repetitions over {how.query}s"
            lines.append((name, f"{taken:.1f}", "-"))
            figures[name] = taken
    figures["table"] = table(("evaluation", "seconds", "this / encode (least-most)"), lines)
    return figures


def main() -> int:
    """Print the table and keep the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--senteval", type=Path, help="SentEval's downstream folder; default: generated pairs")
    parser.add_argument("--cxc", type=Path, help="CSV of CxC-STS that includes the captions")
    parser.add_argument("--model", default=MINILM, help="checkpoint, bundle or backbone")
    parser.add_argument("--pairs", type=int, default=1000, help="generated ones of each of two tasks")
    parser.add_argument("--rounds", type=int, default=3, help="of each")
    return run("evaluate", lambda: measure(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
