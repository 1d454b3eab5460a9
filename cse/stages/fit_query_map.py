"""Train a matrix for queries against all documents, on vectors that are computed once: a pass takes under a second."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import trange

from cse.losses.collection import TEMPERATURE, Targets, sampled_cross_entropy
from cse.model.post.linear import QUERY_MAP, LinearMap

_BATCH = 64  # queries of a step
_PASSES, _LEAST, _MOST = 32, 250, 3000  # steps: more passes over few stand-ins cost a search by words and vectors
_RATE = 1e-3  # of Adam, falling to 0


def fit_query_map(
    vectors: NDArray[np.float32],
    collection: NDArray[np.float32],
    targets: Targets,
    *,
    temperature: float = TEMPERATURE,
    seed: int,
    times: NDArray[np.int64] | None = None,
    progress: bool = False,
) -> LinearMap:
    """Train a matrix ``(D, D)`` of query vectors by ``sampled_cross_entropy``, from the identity on.

    Args:
        vectors: of the queries ``(n, D)``, one per row of ``targets``.
        collection: vectors of the documents ``(N, D)``.
        targets: the teacher's shares.
        seed: of the order of the queries.
        times: how often each query comes in a pass ``(n,)``; None: once.
    """
    queries, documents = torch.from_numpy(vectors), torch.from_numpy(collection)
    place, share, own, sample = (torch.from_numpy(each) for each in vars(targets).values())
    matrix = torch.nn.Parameter(torch.eye(vectors.shape[1]))
    adam = torch.optim.Adam([matrix], lr=_RATE)
    once = np.arange(len(queries)) if times is None else np.repeat(np.arange(len(queries)), times)
    steps = min(max(_PASSES * len(once) // _BATCH, _LEAST), _MOST)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, steps)
    random = np.random.default_rng(seed)
    order: list[int] = []
    for _ in trange(steps, desc="training the query map", disable=not progress, leave=False):
        while len(order) < min(_BATCH, len(once)):
            order += random.permutation(once).tolist()
        rows, order = order[:_BATCH], order[_BATCH:]
        loss = sampled_cross_entropy(
            queries[rows] @ matrix, documents, place[rows], share[rows], own[rows], sample, temperature=temperature
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
        falling.step()
    width = vectors.shape[1]
    return LinearMap.of(QUERY_MAP, np.zeros(width), matrix.detach().double().numpy())
