"""Whether the vectors of the texts that are asked for have moved away from those of the training text.

Requests only put their vectors and token ids on a pile. Piles of many rows go into the sketches in another thread,
smaller ones when somebody asks for the distances. Both leave the memory with their pile; a hash of each text stays, by
which it is known when it comes again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.runtime.bank import Bank
from cse.runtime.domain import Domain
from cse.runtime.sketch import FEWEST, HALF_LIFE, Moments, Sketch
from cse.runtime.tokens import Tokens
from cse.runtime.uses import role_for, text_of
from deploy.server.errors import ServiceError
from deploy.server.logs import log
from deploy.server.models import Served, Target

_PILE = 1024  # rows
_SHOWN = 12  # digits of a version
_NO_REFERENCE = {
    True: "the bundle has no sketch of its training text; export it again",
    False: "the domain has no sketch of its training text; add it to the bank again, with --data",
}

_Owner = Served | Domain
_Note = tuple[Target, Sequence[Domain], NDArray[np.float32], Tokens]


@dataclass(frozen=True, eq=False)
class _Watched:
    """The sketch of the vectors that a model has given, and what is needed of the model."""

    version: str
    sketch: Sketch
    reference: Moments | None
    bundle: bool

    @classmethod
    def of(cls, owner: _Owner) -> _Watched:
        """Begin a sketch."""
        return cls(_version(owner), Sketch(_dimension(owner)), _reference(owner), isinstance(owner, Served))


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

    def note(self, target: Target, domains: Sequence[Domain], vectors: NDArray[np.float32], tokens: Tokens) -> None:
        """Remember the vectors (n, d) of an answer. Called from the event loop alone.

        Args:
            target: the model that gave them.
            domains: domain of each vector, where the server chose it; else empty.
            vectors: nobody changes them afterwards.
            tokens: of each text.
        """
        self._pile.append((target, domains, vectors, tokens))
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
            return {(name, one.version): copy(one.sketch) for name, one in self._watched.items()}

    def _measure(self, pile: list[_Note], others: Sequence[Mapping[tuple[str, str], Sketch]]) -> dict[str, Any]:
        with self._lock:
            self._sketch(pile, [name for part in others for name, _ in part])
            models = []
            for name, one in sorted(self._watched.items()):
                sketch = copy(one.sketch)
                for part in others:
                    if (name, one.version) in part:
                        sketch.join(part[name, one.version])
                models.append(_facts(name, one, sketch))
        return {"models": models, "half_life": HALF_LIFE}

    def _sketch_safely(self, pile: list[_Note]) -> None:
        try:
            with self._lock:
                self._sketch(pile)
        except Exception:  # nobody waits for this
            log.exception("vectors did not enter the sketch of drift")

    def _sketch(self, pile: list[_Note], more: Iterable[str] = ()) -> None:
        """Put vectors into the sketches of the models in service: a bundle, or the domains that were asked for.

        Called under the lock.

        Args:
            pile: the vectors.
            more: names of domains that others were asked for.
        """
        parts = [part for note in pile for part in _parts(*note)]
        given = {name: owner for name, owner, _, _ in parts}
        served, before = self._served(), self._watched
        bank = served.encoder.bank
        if bank is None:
            same = served.name in before and before[served.name].version == served.version
            self._watched = {served.name: before[served.name] if same else _Watched.of(served)}
        else:
            found = ((name, self._current(served, bank, name, given)) for name in {*before, *given, *more})
            self._watched = {name: one for name, one in found if one is not None}
        rows: dict[str, list[NDArray[np.float32]]] = {}
        keys: dict[str, list[int]] = {}
        for name, owner, vectors, own in parts:
            if name in self._watched and self._watched[name].version == _version(owner):
                rows.setdefault(name, []).append(vectors)
                keys.setdefault(name, []).extend(own)
        for name, those in rows.items():
            self._watched[name].sketch.add(np.concatenate(those), keys[name])

    def _current(self, served: Served, bank: Bank, name: str, given: Mapping[str, _Owner]) -> _Watched | None:
        """Return the sketch of a domain as it is now: the one there is, or a new one; None if the domain is gone."""
        outline = served.outline(bank, name)
        if outline is None:
            return None
        version = outline.version[:_SHOWN]
        if name in self._watched and self._watched[name].version == version:
            return self._watched[name]
        owner: _Owner | None = given.get(name)
        if owner is None or _version(owner) != version:
            owner = _domain(served, bank, name)
        return None if owner is None else _Watched.of(owner)


def _domain(served: Served, bank: Bank, name: str) -> Domain | None:
    """Return a domain, None if it is gone or damaged."""
    try:
        return served.domain(bank, name)
    except ServiceError as error:
        if error.code != "model_damaged":
            raise
        return None


def queries(inputs: Sequence[Any], role: str | None, texts: Mapping[str, str]) -> list[int]:
    """Return the places of what was asked for as the training text was read: as a query, if the model declares one.

    Without a role, the task text that a text begins with tells its kind. Of token ids nothing is known.

    Args:
        inputs: texts with their task text, or lists of token ids.
        role: that the request named.
        texts: task text of each role.
    """
    read_as = role_for("query", texts)
    if role not in (None, read_as):
        return []
    wanted = text_of(read_as, texts)
    known = sorted({*texts.values(), wanted}, key=len, reverse=True)
    if known in ([""], []):
        return list(range(len(inputs)))
    return [
        place
        for place, text in enumerate(inputs)
        if isinstance(text, str) and next((one for one in known if text.startswith(one)), None) == wanted
    ]


def _keys(tokens: Tokens) -> list[int]:
    """Return a number for each text, the same in every replica."""
    rows = (tokens.row(place).tobytes() for place in range(len(tokens.starts) - 1))
    return [int.from_bytes(blake2b(row, digest_size=8).digest()) for row in rows]


def _parts(
    target: Target, domains: Sequence[Domain], vectors: NDArray[np.float32], tokens: Tokens
) -> list[tuple[str, _Owner, NDArray[np.float32], list[int]]]:
    """Return the vectors and keys of each model: a bundle, or the domains of a bank."""
    keys = _keys(tokens)
    if not domains:
        return [(target.name, target.domain or target.served, vectors, keys)]
    places: dict[Domain, list[int]] = {}
    for place, domain in enumerate(domains):
        if not domain.texts:  # nobody asked for these as queries
            places.setdefault(domain, []).append(place)
    return [
        (one.name, one, vectors[chosen, : one.dimension], [keys[i] for i in chosen]) for one, chosen in places.items()
    ]


def _facts(name: str, watched: _Watched, sketch: Sketch) -> dict[str, Any]:
    reference = watched.reference
    distinct = round(sketch.moments().count)
    found = None if reference is None or distinct < FEWEST else sketch.distance(reference)
    reason = None
    if found is None:
        few = f"fewer than {FEWEST} different texts so far"
        reason = _NO_REFERENCE[watched.bundle] if reference is None else few
    return {
        "model": name,
        "version": watched.version,
        "distance": None if found is None else round(found, 6),
        "texts": sketch.texts,
        "distinct_texts": distinct,
        "reference_texts": 0 if reference is None else int(reference.count),
        "reason": reason,
    }


def _dimension(owner: _Owner) -> int:
    return owner.encoder.dimension if isinstance(owner, Served) else owner.dimension


def _version(owner: _Owner) -> str:
    return owner.version if isinstance(owner, Served) else owner.identity()[:_SHOWN]


def _reference(owner: _Owner) -> Moments | None:
    if isinstance(owner, Served):
        return owner.reference
    mean, variance, count = owner.sketch_mean, owner.sketch_variance, owner.sketch_count
    if mean is None or variance is None or count is None:
        return None
    return Moments(mean.astype(np.float64), variance.astype(np.float64), float(count[0]))
