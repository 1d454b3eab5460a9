"""Write dev pairs of three STS sources: STS-B dev, STS12's training pairs, and a part of SICK's.

    python -m benchmarks.similarity_dev data/raw/evaluation data/raw/similarity/pairs.csv

None of them is in a test set of the seven tasks. SICK's scores, 1 to 5, are put on STS-B's scale, 0 to 5.
"""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random

import click

from cse.outputs import publish_file

_SICK_TRAIN = 1000  # pairs of SICK's training part, beside the 500 of its trial part
Pair = tuple[str, str, float]


def similarity_pairs(senteval: Path) -> list[Pair]:
    """Return pairs of texts with their similarity from 0 to 5, from SentEval's downstream folder."""
    sts = senteval / "STS" / "STSBenchmark"
    sts12 = [fields for fields in _fields(sts / "sts-train.csv") if fields[2] == "2012train"]
    pairs = [(fields[5], fields[6], float(fields[4])) for fields in _fields(sts / "sts-dev.csv") + sts12]
    trial, train = (_sick(senteval / "SICK" / f"SICK_{part}.txt") for part in ("trial", "train"))
    pairs += trial + Random(42).sample(train, _SICK_TRAIN)
    kept: dict[frozenset[str], Pair] = {}
    for pair in pairs:
        kept.setdefault(frozenset(pair[:2]), pair)  # STS-B's parts share a few
    return list(kept.values())


def _sick(path: Path) -> list[Pair]:
    return [(first, second, 1.25 * (float(score) - 1)) for _, first, second, score, *_ in _fields(path)[1:]]


def _fields(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("senteval", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def main(senteval: Path, out: Path) -> None:
    """Write the pairs of SENTEVAL, its downstream folder, as the CSV file OUT."""
    pairs = similarity_pairs(senteval)
    out.parent.mkdir(parents=True, exist_ok=True)
    with publish_file(out) as target, target.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence1", "sentence2", "score"), *pairs])
    click.echo(f"{out}: {len(pairs):,} pairs")


if __name__ == "__main__":
    main()
