"""Paraphrase retrieval: each sentence of an STS-B pair with gold score 5 retrieves the other (D2CSE tables 3 and 4).

The papers do not state the candidates. With ``dedup`` each string occurs once and is never its own candidate; only this
agrees with D2CSE's figures. Without it every sentence slot but the query's own is a candidate, and a duplicate of the
query always ranks first (DiffCSE's figures).

One query with near-identical candidates is shown by itself: is the paraphrase ranked first (D2CSE table 2)?
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cse.data.tasks.kinds import ScoredPairs
from cse.errors import CseError
from cse.evaluation.measures import Score
from cse.evaluation.vectors import Vectors
from cse.runtime.encode import unit_rows

CUTS = (1, 3, 5)
SHOWN = 5  # nearest sentences kept for reading
# the example of D2CSE's table 2, written as in STS-B; the second candidate has gold 5
QUERY = "you can do it , too ."
CANDIDATES = ("you can use it , too .", "yes , you can do it .", "can you do it ?")
EXAMPLE = (QUERY, *CANDIDATES)
_BLOCK = 1024  # queries


@dataclass(frozen=True)
class Example:
    """A query with its nearest sentences.

    Attributes:
        rank: the partner's rank, 1 is nearest.
        nearest: candidates with their cosines, nearest first.
    """

    query: str
    partner: str
    rank: int
    nearest: list[tuple[str, float]]


def score_retrieval(vectors: Vectors, pairs: ScoredPairs, *, gold: float = 5.0, dedup: bool = True) -> Score:
    """Look up the partner of each sentence of the pairs whose gold score is at least ``gold``; recall is in percent.

    A partner's rank is 1 plus the number of candidates that are strictly nearer.
    """
    rows = np.flatnonzero(pairs.score >= gold)
    if not len(rows):
        raise CseError(f"{pairs.name}: no pair has a gold score of {gold:g} or more; give pairs that are paraphrases")
    slots = [*pairs.sentence1, *pairs.sentence2]
    pool = list(dict.fromkeys(slots)) if dedup else slots
    count = len(pairs)
    own = np.concatenate([rows, rows + count])  # slots of the queries
    wanted = np.concatenate([rows + count, rows])
    if dedup:
        place = {text: i for i, text in enumerate(pool)}
        own, wanted = (np.array([place[slots[i]] for i in ends]) for ends in (own, wanted))
        different = own != wanted  # a sentence is not looked up in itself
        own, wanted = own[different], wanted[different]
    unit_ND = unit_rows(vectors.of(pool).astype(np.float64))
    examples = []
    for start in range(0, len(own), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines_QN = unit_ND[own[block]] @ unit_ND.T
        cosines_QN[np.arange(len(cosines_QN)), own[block]] = -np.inf
        target_Q = cosines_QN[np.arange(len(cosines_QN)), wanted[block]]
        rank_Q = 1 + (cosines_QN > target_Q[:, None]).sum(axis=1)
        nearest_QK = np.argsort(-cosines_QN, axis=1, kind="stable")[:, :SHOWN]
        for q, (query, partner) in enumerate(zip(own[block], wanted[block], strict=True)):
            nearest = [(pool[i], float(cosines_QN[q, i])) for i in nearest_QK[q] if i != query]
            examples.append(Example(pool[query], pool[partner], int(rank_Q[q]), nearest))
    ranks = np.array([example.rank for example in examples])
    recall = {f"recall@{cut}": 100 * float((ranks <= cut).mean()) for cut in CUTS}
    kind = "distinct sentences" if dedup else "sentences, repetitions kept"
    setting = f"{len(examples)} queries from pairs with gold >= {gold:g}, both directions, {len(pool) - 1:,} {kind}"
    facts = {"queries": len(examples), "candidates": len(pool) - 1, "gold": gold, "dedup": dedup}
    return Score(recall, setting, facts, examples=examples)


def score_near_identical(vectors: Vectors) -> dict[str, float]:
    """Return the cosine of each candidate to the query of ``EXAMPLE``, from -1 to 1."""
    cosines = vectors.cosines([QUERY] * len(CANDIDATES), CANDIDATES)
    return dict(zip(CANDIDATES, map(float, cosines), strict=True))
