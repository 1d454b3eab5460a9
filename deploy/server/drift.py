"""Whether the vectors of the texts that are asked for have moved away from those of the training text.

Requests only put their vectors on a pile. Piles of many rows go into the sketches in another thread, smaller ones when
somebody asks for the distances. Vectors leave the memory with their pile; texts never get here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.runtime.domain import Domain
from cse.runtime.sketch import HALF_LIFE, Moments, Sketch
from deploy.server.logs import log
from deploy.server.models import Served, Target

_PILE = 1024  # rows
_NO_REFERENCE = {
    True: "the bundle has no sketch of its training text; export it again",
    False: "the domain has no sketch of its training text; add it to the bank again, with --data",
}

_Owner = Served | Domain
_Note = tuple[Target, Sequence[Domain], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class _Watched:
    """A model, and the sketch of the vectors that it has given."""

    owner: _Owner
    sketch: Sketch


class Drift:
    """The sketch of each model in service. A model that takes over starts a new one.

    Args:
        served: returns the model in service.
        beside: runs what would hold up requests.
    """

    def __init__(self, served: Callable[[], Served], beside: Executor) -> None:
        self._served, self._beside = served, beside
        self._pile: list[_Note] = []
        self._rows = 0
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}

    def note(self, target: Target, domains: Sequence[Domain], vectors: NDArray[np.float32]) -> None:
        """Remember the vectors (n, d) of an answer. Called from the event loop alone.

        Args:
            target: the model that gave them.
            domains: domain of each vector, for a bank.
            vectors: nobody changes them afterwards.
        """
        self._pile.append((target, domains, vectors))
        self._rows += len(vectors)
        # a pile keeps its model in memory: not beyond the first answer of another one
        if self._rows >= _PILE or self._pile[0][0].served is not target.served:
            self._beside.submit(self._sketch_safely, self._take_pile())

    async def distances(self, others: Sequence[Mapping[tuple[str, str], Sketch]] = ()) -> dict[str, Any]:
        """Return the answer of ``GET /drift``; it counts every answer given so far.

        Args:
            others: what the other replicas' ``sketches`` returned.
        """
        return await asyncio.get_running_loop().run_in_executor(self._beside, self._measure, self._take_pile(), others)

    async def sketches(self) -> dict[tuple[str, str], Sketch]:
        """Return the sketch of each model that has given vectors, by name and version."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, self._now, self._take_pile())

    def _take_pile(self) -> list[_Note]:
        pile, self._pile, self._rows = self._pile, [], 0
        return pile

    def _now(self, pile: list[_Note]) -> dict[tuple[str, str], Sketch]:
        with self._lock:
            self._sketch(pile)
            return {(name, _version(one.owner)): copy(one.sketch) for name, one in self._watched.items()}

    def _measure(self, pile: list[_Note], others: Sequence[Mapping[tuple[str, str], Sketch]]) -> dict[str, Any]:
        with self._lock:
            owners = self._sketch(pile)
            models = []
            for name, owner in owners.items():
                sketch = Sketch(self._served().encoder.dimension)
                own = [self._watched[name].sketch] if name in self._watched else []
                for one in (*own, *(part[key] for part in others if (key := (name, _version(owner))) in part)):
                    sketch.join(one)
                models.append(_facts(name, owner, sketch))
        return {"models": models, "half_life": HALF_LIFE}

    def _sketch_safely(self, pile: list[_Note]) -> None:
        try:
            with self._lock:
                self._sketch(pile)
        except Exception:  # nobody waits for this
            log.exception("vectors did not enter the sketch of drift")

    def _sketch(self, pile: list[_Note]) -> dict[str, _Owner]:
        """Put vectors into the sketches of the models in service, which are returned by name. Called under the lock."""
        served = self._served()
        bank = served.encoder.bank
        owners: dict[str, _Owner] = {served.name: served} if bank is None else dict(served.domains(bank).usable)
        self._watched = {name: one for name, one in self._watched.items() if owners.get(name) is one.owner}
        rows: dict[str, list[NDArray[np.float32]]] = {}
        for note in pile:
            for name, owner, vectors in _parts(*note):
                if owners.get(name) is owner:
                    rows.setdefault(name, []).append(vectors)
        for name, parts in rows.items():
            if name not in self._watched:
                self._watched[name] = _Watched(owners[name], Sketch(served.encoder.dimension))
            self._watched[name].sketch.add(np.concatenate(parts))
        return owners


def _parts(
    target: Target, domains: Sequence[Domain], vectors: NDArray[np.float32]
) -> list[tuple[str, _Owner, NDArray[np.float32]]]:
    """Return the vectors of each model: a bundle, or the domains of a bank."""
    if not domains:
        return [(target.id, target.served, vectors)]
    if not target.auto:
        return [(target.id, domains[0], vectors)]
    places: dict[Domain, list[int]] = {}
    for place, domain in enumerate(domains):
        places.setdefault(domain, []).append(place)
    return [(domain.name, domain, vectors[chosen]) for domain, chosen in places.items()]


def _facts(name: str, owner: _Owner, sketch: Sketch) -> dict[str, Any]:
    reference = _reference(owner)
    found = None if reference is None else sketch.distance(reference)
    reason = None
    if found is None:
        reason = _NO_REFERENCE[isinstance(owner, Served)] if reference is None else "fewer than two texts so far"
    return {
        "model": name,
        "version": _version(owner),
        "distance": None if found is None else round(found, 6),
        "texts": sketch.texts,
        "reference_texts": 0 if reference is None else int(reference.count),
        "reason": reason,
    }


def _version(owner: _Owner) -> str:
    return owner.version if isinstance(owner, Served) else owner.identity()[:12]


def _reference(owner: _Owner) -> Moments | None:
    if isinstance(owner, Served):
        return owner.reference
    mean, variance, count = owner.sketch_mean, owner.sketch_variance, owner.sketch_count
    if mean is None or variance is None or count is None:
        return None
    return Moments(mean.astype(np.float64), variance.astype(np.float64), float(count[0]))
