"""Near-identical sentences: is the paraphrase ranked first (D2CSE table 2)?"""

from __future__ import annotations

from collections.abc import Sequence

from cse.evaluation.measures import pair_cosines
from cse.evaluation.vectors import Vectors

# the example of D2CSE's table 2, written as in STS-B; the second candidate has gold 5
QUERY = "you can do it , too ."
CANDIDATES = ("you can use it , too .", "yes , you can do it .", "can you do it ?")
CORRECT = CANDIDATES[1]


def sentences_of_example() -> Sequence[str]:
    """Return the sentences to encode."""
    return (QUERY, *CANDIDATES)


def score_near_identical(vectors: Vectors) -> dict[str, float]:
    """Return the cosine of each candidate to the query, from -1 to 1."""
    cosines = pair_cosines(vectors.of([QUERY] * len(CANDIDATES)), vectors.of(CANDIDATES))
    return dict(zip(CANDIDATES, map(float, cosines), strict=True))
