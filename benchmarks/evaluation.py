"""Cost of evaluation compared with encoding: the seven STS tasks, and the bootstrap of CxC-STS.

    python -m benchmarks.evaluation --senteval ../shared/data/senteval --cxc ../shared/data/cxc

The lower bound for the STS tasks is one encoder call on their distinct sentences. Rounds alternate, so that other load
slows both; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cse.data.cxc import read_cxc
from cse.data.evaluation import read_senteval
from cse.evaluation.cxc import Bootstrap, score_cxc
from cse.evaluation.sts import evaluate_sts, sentences_of
from cse.evaluation.vectors import Vectors
from cse.stages.open_model import open_model

BACKBONE = "sentence-transformers/all-MiniLM-L6-v2"


class Random:
    """An encoder that costs nothing."""

    def encode(self, sentences: list[str], **_: object) -> np.ndarray:
        """Return random vectors."""
        return np.random.default_rng(0).normal(size=(len(sentences), 384)).astype(np.float32)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--senteval", type=Path, required=True, help="SentEval's downstream folder")
    parser.add_argument("--cxc", type=Path, help="CSV of CxC-STS that includes the captions")
    parser.add_argument("--model", default=BACKBONE, help="checkpoint, bundle or backbone")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tasks = read_senteval(args.senteval).tasks
    model = open_model(args.model)
    distinct = list(dict.fromkeys(sentences_of(tasks)))
    rounds = [
        (
            seconds(lambda: model.encode(distinct, batch_size=64, normalize=False)),
            seconds(lambda: evaluate_sts(model, tasks)),
        )
        for _ in range(args.rounds)
    ]
    bare, whole = (statistics.median(times) for times in zip(*rounds, strict=True))
    print(f"{len(distinct):,} distinct sentences of {len(tasks)} tasks: encode {bare:.1f} s, evaluate {whole:.1f} s")
    print(f"ratio {whole / bare:.3f}")
    if args.cxc:
        pairs = read_cxc(args.cxc)
        vectors = Vectors(Random(), [*pairs.sentence1, *pairs.sentence2])
        for how in (Bootstrap(), Bootstrap("caption", replace=False)):
            taken = seconds(lambda how=how: score_cxc(vectors, pairs, how))
            print(f"CxC-STS, {how.repetitions:,} repetitions over {how.query}s: {taken:.1f} s after encoding")


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
