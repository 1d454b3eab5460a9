"""Rows of many domains as inputs of one graph, and its pooled vectors as theirs.

Legend: as in ``cse.runtime.domain``; ``b`` rows of a batch, which belong to ``u`` distinct domains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.runtime.domain import POOLERS, Domain, update_shapes

INPUTS = ("domain", "prompt", "prompt_length", "position_shift", "trained_cls", "cls", "pooling")  # see ``feed``


def feed(rows: Sequence[Domain], updates: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Return the model's inputs for a batch whose rows belong to these domains.

    ``domain`` (b) gives each row's place among the batch's ``u`` distinct domains; ``prompt`` (2nu, h, p, k) holds
    their keys and values, filled up to the longest with zeros, which ``prompt_length`` (u) masks; the rest is
    ``position_shift`` (u), ``trained_cls`` (u), ``cls`` (u, w) and ``pooling`` (u), its place in ``POOLERS``.
    Where the model takes updates, of the widths ``updates``, they are ``update_down`` (u, r, i), ``update_up``
    (u, 1 + r, o) and ``update_rest`` (u, x), filled up with zeros likewise.
    """
    place: dict[Domain, int] = {}
    domain = np.fromiter((place.setdefault(row, len(place)) for row in rows), np.int64, len(rows))
    distinct = list(place)
    longest = max(1, *(one.length for one in distinct))
    prompts = [_filled(one.prompt, longest) for one in distinct]
    no_cls = np.zeros(distinct[0].facts.words, np.float32)
    return {
        "domain": domain,
        "prompt": prompts[0] if len(prompts) == 1 else np.concatenate(prompts),
        "prompt_length": np.array([one.length for one in distinct]),
        "position_shift": np.array([one.facts.position_shift for one in distinct]),
        "trained_cls": np.array([one.cls is not None for one in distinct]),
        "cls": np.stack([no_cls if one.cls is None else one.cls for one in distinct]),
        "pooling": np.array([POOLERS.index(one.facts.pooler) for one in distinct]),
        **(_updates(distinct, updates) if updates else {}),
    }


def _updates(distinct: Sequence[Domain], widths: Mapping[str, int]) -> dict[str, NDArray[np.float32]]:
    shapes = update_shapes(widths, max(1, *(one.rank for one in distinct)))
    found = {name: np.zeros((len(distinct), *shape), np.float32) for name, shape in shapes.items()}
    for place, domain in enumerate(distinct):
        for name, tensors in found.items():
            own = getattr(domain, name)
            if own is not None:
                tensors[place, : len(own)] = own
    return found


def finish(pooled: NDArray[np.float32], rows: Sequence[Domain]) -> NDArray[np.float32]:
    """Return vectors (b, d) from pooled vectors, which it may overwrite: behind each row's projector and map.

    A narrower one ends in zeros.

    Args:
        rows: domain of each row.
    """
    places: dict[Domain, list[int]] = {}
    for index, row in enumerate(rows):
        if row.projects:
            places.setdefault(row, []).append(index)
    for domain, mine in places.items():
        projected = domain.project(pooled[mine])
        pooled[mine] = 0.0
        pooled[mine, : domain.dimension] = projected
    return pooled


def _filled(prompt: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    if prompt.shape[2] == length:
        return prompt
    return np.pad(prompt, ((0, 0), (0, 0), (0, length - prompt.shape[2]), (0, 0)))
