"""What a query side wins on search collections whose index stays as it is, from nothing labelled and from judgements.

    python -m benchmarks.queries FOLDER...                      # each in BEIR's layout

For each collection: the bare backbone, and the query map of `post.kind: query_map`, trained with each seed, from at
most five stand-ins of a document, also from cosines without words. Then half of the judged queries is trained on as
well, and the other half measured. nDCG@10 of vectors alone, and of words and vectors together. The last column compares
the vectors' nDCG@10 with the bare backbone's on the same queries, seeds and items in one interval (docs/evaluate.md).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.harness import facts, parser_of, run, say, table
from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.data.tasks.beir import read_beir
from cse.data.tasks.kinds import Retrieval
from cse.evaluation.comparison import Outcomes, compare_average
from cse.evaluation.retrieval import NDCG, WITH_WORDS, score_queries
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.encode import unit_rows
from cse.runtime.uses import role_for
from cse.settings.data import DataSettings
from cse.settings.model import BackboneSettings
from cse.training.collection import WORDS, QueryPairs, pairs_of, teach
from cse.training.fit_post import fit_query_map

BARE = "the bare backbone"
_WEIGHT = 0.5  # rows of judged queries for each stand-in, as `cse adapt --dev-queries` takes them
Vectors = NDArray[np.float32]
Scores = dict[str, NDArray[np.float64]]


class Remembering:
    """A bare backbone that encodes each text once."""

    def __init__(self, name: str) -> None:
        self.encoder = SentenceEncoder.load(name)
        self.texts = self.encoder.texts
        self._known: dict[tuple[str, str | None], Vectors] = {}

    def encode(self, texts: Sequence[str], kind: str) -> Vectors:
        """Return unit vectors ``(n, D)`` of texts of a kind, ``query`` or ``document``."""
        role = role_for(kind, self.texts)
        new = [text for text in dict.fromkeys(texts) if (text, role) not in self._known]
        if new:
            vectors = self.encoder.encode(new, show_progress_bar=sys.stderr.isatty(), role=role)
            self._known |= {(text, role): vector for text, vector in zip(new, vectors, strict=True)}
        return np.stack([self._known[text, role] for text in texts])


@dataclass(frozen=True)
class Searched:
    """A collection, and what measures a query side on it."""

    folder: Path
    task: Retrieval
    bare: Remembering

    @cached_property
    def documents(self) -> Vectors:
        """The documents' vectors."""
        return self.bare.encode(self.task.documents, "document")

    @cached_property
    def queries(self) -> Vectors:
        """The bare backbone's vectors of the queries."""
        return self.bare.encode(self.task.queries, "query")

    def scores(self, queries: Vectors, kept: NDArray[np.int64]) -> Scores:
        """Return nDCG@10 of each kept query with a relevant document, of vectors and with words."""
        found = score_queries(unit_rows(queries), self.documents, self.task, words=True)
        return {name: found[name][kept] for name in (NDCG, WITH_WORDS)}

    @cached_property
    def judged(self) -> NDArray[np.int64]:
        """Numbers of the queries with a relevant document."""
        return np.unique(self.task.query[self.task.relevance > 0])

    def rows_of(self, kept: NDArray[np.int64]) -> tuple[list[str], list[str]]:
        """Return the judged pairs of some queries, each query and each of its relevant documents."""
        chosen = np.flatnonzero(np.isin(self.task.query, kept) & (self.task.relevance > 0) & (self.task.document >= 0))
        places = zip(self.task.query[chosen].tolist(), self.task.document[chosen].tolist(), strict=True)
        pairs = [(self.task.queries[query], _normal(self.task.documents[document])) for query, document in places]
        return [query for query, _ in pairs], [document for _, document in pairs]


def _normal(text: str) -> str:
    return " ".join(text.split()[:1000])


def stand_ins(folder: Path) -> QueryPairs:
    """Return titles and sentences of the documents, each with its document."""
    settings = DataSettings(
        source="files", view="documents", pairs="stand_ins", stand_ins=5, dev="own",
        train_path=str(folder / "corpus.jsonl"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="queries-") as name:
        prepare(settings, Path(name) / "prepared", progress=False)
        return pairs_of([(PreparedData(Path(name) / "prepared").train, True)])


def with_judged(pairs: QueryPairs, queries: list[str], documents: list[str]) -> QueryPairs:
    """Return pairs with judged ones as a second source."""
    number = {text: place for place, text in enumerate(pairs.documents)}
    place = [number.setdefault(text, len(number)) for text in documents]
    return QueryPairs(
        pairs.queries + queries,
        list(number),
        np.concatenate([pairs.place, np.array(place, np.int64)]),
        np.concatenate([pairs.stands_in, np.zeros(len(queries), bool)]),
        np.concatenate([pairs.source, np.ones(len(queries), np.int64)]),
    )


def trained_map(bare: Remembering, pairs: QueryPairs, words: float = WORDS) -> Callable[[Vectors, int], Vectors]:
    """Return what maps queries by a matrix trained with a seed."""
    own, documents = bare.encode(pairs.queries, "query"), bare.encode(pairs.documents, "document")
    targets, times = teach(pairs, own, documents, words), pairs.times([_WEIGHT] * int(pairs.source.max()))

    def mapped(queries: Vectors, seed: int) -> Vectors:
        fitted = fit_query_map(own, documents, targets, seed=seed, times=times)
        return np.asarray(fitted(torch.from_numpy(queries)).numpy())

    return mapped


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the figures."""
    bare = Remembering(options.backbone)
    found: dict[str, dict[str, list[Scores]]] = {}
    for folder in options.folders:
        searched = Searched(folder, read_beir(folder, folder.name), bare)
        of = found[folder.name] = {BARE: [searched.scores(searched.queries, searched.judged)]}
        pairs = stand_ins(folder)
        for name, words in (("map", WORDS), ("map, no words", 0.0)):
            start = time.monotonic()
            mapped = trained_map(bare, pairs, words)
            seeds = range(options.seeds)
            of[name] = [searched.scores(mapped(searched.queries, seed), searched.judged) for seed in seeds]
            mean = 100 * np.mean([each[NDCG] for each in of[name]])
            say(f"{folder.name}: {name}: {mean:.2f}, {time.monotonic() - start:.0f} s")
        halves: dict[str, list[Scores]] = {"half, bare": [], "half, map": [], "half, map with judged queries": []}
        unlabelled = trained_map(bare, pairs)
        for split in range(options.splits):
            order = np.random.default_rng(split).permutation(searched.judged)
            trained, kept = order[: len(order) // 2], np.sort(order[len(order) // 2 :])
            labelled = trained_map(bare, with_judged(pairs, *searched.rows_of(trained)))
            each = (lambda vectors, _: vectors, unlabelled, labelled)
            for name, mapped in zip(halves, each, strict=True):
                halves[name].append(searched.scores(mapped(searched.queries, split), kept))
        of |= halves
    figures = {
        name: {
            system: [{key: each.mean() for key, each in one.items()} for one in seeds] for system, seeds in of.items()
        }
        for name, of in found.items()
    }
    return facts("cpu") | {"backbone": options.backbone, "figures": figures, "table": _table(found)}


def _table(found: dict[str, dict[str, list[Scores]]]) -> str:
    """Return means over seeds or splits with their standard deviation, and the difference from the bare backbone."""
    lines = []
    for folder, of in found.items():
        for system, seeds in of.items():
            cells = []
            for name in (NDCG, WITH_WORDS):
                means = 100 * np.array([each[name].mean() for each in seeds])
                spread = f" ± {means.std(ddof=1):.2f}" if len(means) > 1 else ""
                cells.append(f"{means.mean():.2f}{spread}")
            lines.append((f"{folder}, {system}", *cells, _against([of], system, NDCG)))
    every = list(found.values())
    for system in every[0] if len(every) > 1 else ():
        if not system.startswith(("half", BARE)):
            told = (_against(every, system, name) for name in (NDCG, WITH_WORDS))
            lines.append((f"mean, {system}, difference", *told, ""))
    return table(("collection, queries", NDCG, WITH_WORDS, "difference from bare, 95 % interval, p"), lines)


def _against(every: list[dict[str, list[Scores]]], system: str, name: str) -> str:
    """Return the difference of a system from the bare backbone, mean over the collections, with interval and p."""
    if system in (BARE, "half, bare"):
        return ""
    if system.startswith("half"):  # other queries in each split: the differences of the splits
        pairs = zip(every[0]["half, bare"], every[0][system], strict=True)
        differences = [100 * (after[name].mean() - before[name].mean()) for before, after in pairs]
        return f"{np.mean(differences):+.2f} (splits {min(differences):+.2f} to {max(differences):+.2f})"
    done = compare_average(
        [
            (
                Outcomes(np.stack([each[name] for each in of[BARE]]), trained=False),
                Outcomes(np.stack([each[name] for each in of[system]]), trained=True),
            )
            for of in every
        ]
    )
    return f"{done.difference:+.2f} ({done.low:+.2f} to {done.high:+.2f}), p {done.p:.3f}"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="search collections in BEIR's layout")
    parser.add_argument("--seeds", type=int, default=3, help="of each training")
    parser.add_argument("--splits", type=int, default=3, help="of the judged queries in halves")
    parser.add_argument("--backbone", default=BackboneSettings().name, help="as in backbone.name")
    return parser.parse_args(arguments)


def main() -> int:
    """Print the table and keep the figures."""
    return run("queries", lambda: measure(parse()))


if __name__ == "__main__":
    sys.exit(main())
