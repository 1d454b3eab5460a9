"""The model in service, the ids by which requests name it, and questions to its folder, which may not answer."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cse.errors import CseError
from cse.runtime.bank import BadDomainError, NoDomainError, nearest_name
from cse.runtime.domain import AUTO, Domain, Outline
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, role_for
from deploy.server.errors import ServiceError

AGE = 3.0  # seconds in which ``auto`` may not see a change of the bank
SECONDS = 5.0  # that a question to a folder may take
PAGE, LARGEST_PAGE = 1000, 10_000  # models in an answer of ``/v1/models``
_T = TypeVar("_T")


class Target(NamedTuple):
    """What a request's ``model`` stands for.

    Attributes:
        id: as in ``/v1/models``.
        domain: None for ``auto``: each text goes to the nearest of the bank.
        role: that the id names, as in ``NAME:query``; None: the id names none.
    """

    served: Served
    id: str
    domain: Domain | None
    role: str | None = None

    @property
    def texts(self) -> dict[str, str]:
        """Task texts by role."""
        return {} if self.domain is None else self.domain.texts

    @property
    def name(self) -> str:
        """The id without a role."""
        return self.id if self.domain is None else self.domain.name

    @property
    def names_role(self) -> bool:
        """Whether the id says in which role texts are read."""
        return self.id != self.name

    @property
    def dimension(self) -> int:
        """Numbers of a vector; of ``auto``, the most that a domain may give."""
        return self.served.encoder.dimension if self.domain is None else self.domain.dimension

    @property
    def max_length(self) -> int:
        """Maximum tokens per text, special tokens included."""
        bare = self.served.encoder.bank.bare
        return (bare if self.domain is None else self.domain.in_role(self.role, bare)).max_length


@dataclass(frozen=True, eq=False)
class Served:
    """A model that is loaded. Whatever asks for domains raises ``ServiceError`` 503 where the folder cannot be read.

    Attributes:
        version: in the registry, else the start of the hash of its files.
    """

    encoder: OnnxEncoder
    name: str
    version: str
    loaded: float = field(default_factory=time.time)

    @classmethod
    def load(cls, folder: Path, name: str, version: str | None, **options: Any) -> Served:
        """Load a bundle or bank and answer one text, so that the first request does not wait.

        Args:
            folder: the bundle or bank.
            version: in the registry, if it is from there.
            options: of ``OnnxEncoder``.
        """
        encoder = OnnxEncoder(folder, name=name, **options)
        rows = [encoder.tokenize(["warm up"]).row(0)]
        for one_core in {False, encoder.threads > 1}:
            encoder.embed_rows(rows, one_core=one_core)
        files = encoder.manifest.files
        return cls(encoder, name, version or files["model.onnx"][:12])

    @property
    def sha256(self) -> str:
        """SHA-256 of the ONNX graph."""
        return self.encoder.manifest.files["model.onnx"]

    def names(self) -> Sequence[str]:
        """Return the names of the domains, which may be damaged; a bundle's is its own."""
        return self._ask(self.encoder.bank.names) or ()

    def cards(self, after: str = "", limit: int = PAGE, allowed: Collection[str] | None = None) -> Cards:
        """Return entries of ``/v1/models``: of the domains in alphabetical order.

        A model that declares queries has two more, ``NAME:query`` and ``NAME:passage``, for clients that cannot name a
        role. The last is ``auto``, if a domain has centres. Costs a ``stat`` of each file.

        Args:
            after: the last id of the page before.
            limit: most models, each with its roles.
            allowed: names of models to list; None: all.
        """
        bank, names = self.encoder.bank, self.names()
        known = names if allowed is None else sorted(set(names) & set(allowed))
        begin = bisect(known, after.partition(":")[0]) if after else 0
        page = known[begin : begin + limit]
        cards = [card for name in page for card in self._cards_of(name)]
        more = begin + limit < len(known)
        if not more and (allowed is None or AUTO in allowed) and self._chooses(names):
            cards.append(self._card(AUTO, bank.manifest.shape.dimension, self.encoder.max_length, normalize=True))
        return Cards(cards, page[-1] if page else None, more)

    def domain(self, name: str) -> Domain | None:
        """Return a domain; None if there is none.

        Raises:
            ServiceError: 503, its file is damaged.
        """
        try:
            return self._ask(lambda: self.encoder.bank.domain(name))
        except BadDomainError as error:
            message = f"model {name!r}: its file in the bank is damaged; the log says how"
            raise ServiceError(503, message, param="model", code="model_damaged", reason=str(error)) from None

    def outline(self, name: str) -> Outline | None:
        """Return the outline of a domain; None if it is gone or damaged."""
        try:
            return self._ask(lambda: self.encoder.bank.outline(name))
        except BadDomainError:
            return None

    def nearest(self, vectors: NDArray[np.float32]) -> list[Domain]:
        """Return the domain whose centres are nearest to each of some vectors (n, d) of the bare backbone.

        Raises:
            ServiceError: 404, no domain has centres any more.
        """
        found = self._ask(lambda: self.encoder.bank.nearest(vectors, AGE))
        if found is None:
            raise _unknown(AUTO, self.names())
        return found

    def only(self) -> str:
        """Return the only model's id.

        Raises:
            ServiceError: 400, one of several must be named.
        """
        names = self.names()
        if len(names) != 1:
            raise ServiceError(400, f"model: name one of {_listed(names)}", param="model", code="model_missing")
        return names[0]

    def target(self, model: str, allowed: Collection[str] | None = None) -> Target:
        """Return what an id stands for.

        Args:
            allowed: names to speak of where there is no such model; None: all.

        Raises:
            ServiceError: 404, there is no such model; 503, its file is damaged.
        """
        if model == AUTO and self._ask(lambda: bool(self.encoder.bank.centres(AGE))):
            return Target(self, AUTO, None)
        name = model if model == self.name else name_in(model)
        domain = self.domain(name)
        if domain is None:
            raise _unknown(model, self.names() if allowed is None else sorted(allowed))
        roles = {name: None, **_with_roles(name, domain.texts)}
        if model not in roles:
            raise _unknown(model, list(roles))
        return Target(self, model, domain, roles[model])

    def _ask(self, question: Callable[[], _T]) -> _T | None:
        """Return what a bank answers, None if it has no such domain."""
        try:
            return question()
        except NoDomainError:
            return None
        except BadDomainError:
            raise
        except CseError as error:
            raise unreachable("the bank's folder cannot be read now; the log says why", str(error)) from None

    def _chooses(self, names: Sequence[str]) -> bool:
        """Return whether a domain has centres; most often the first has."""
        return any(outline.centres for name in names if (outline := self.outline(name)) is not None)

    def _cards_of(self, name: str) -> list[dict[str, Any]]:
        outline = self.outline(name)
        if outline is None:
            return []
        width, length, normalize, queries, side, _ = outline
        other = self.encoder.max_length if side == QUERY else length
        lengths = {name: other, **({f"{name}:{QUERY}": length, f"{name}:passage": other} if queries else {})}
        return [self._card(one, width, most, normalize) for one, most in lengths.items()]

    def _card(self, name: str, dimension: int, max_length: int, normalize: bool) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(self.loaded),
            "owned_by": "cse",
            "dimension": dimension,
            "max_length": max_length,
            "normalize": normalize,
        }


class Storage:
    """Asks in threads, about one name a question at a time: a file that hangs holds up those alone who ask for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(64, thread_name_prefix="storage")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ask(self, name: str, question: Callable[[], _T]) -> _T:
        """Return the answer to a question that may look at the file of domain ``name``; "": at the folder.

        Raises:
            ServiceError: 503, it takes too long.
        """
        turn = self._turns.setdefault(name, asyncio.Lock())
        try:
            async with asyncio.timeout(SECONDS):
                await turn.acquire()
                answer = asyncio.get_running_loop().run_in_executor(self._pool, question)
                answer.add_done_callback(lambda _: turn.release())
                return await asyncio.shield(answer)
        except TimeoutError:
            whose = f"model {name[:80]!r}: its file" if name else "the bank's folder"
            raise unreachable(f"{whose} did not answer within {SECONDS:g} s") from None


def unreachable(why: str, reason: str = "") -> ServiceError:
    """Return the refusal of a request that needs a file or the folder."""
    return ServiceError(503, why, code="bank_unreachable", retry_after=1, reason=reason)


class Cards(NamedTuple):
    """A page of ``/v1/models``.

    Attributes:
        data: entries; none for a damaged domain.
        last_id: what to begin the next page after; None: nothing is on this one.
    """

    data: list[dict[str, Any]]
    last_id: str | None
    has_more: bool


def _with_roles(name: str, texts: Mapping[str, str]) -> dict[str, str | None]:
    """Return the role of each id that names one: of a query, and of a document as the model calls it."""
    if QUERY not in texts:
        return {}
    return {f"{name}:{QUERY}": QUERY, f"{name}:passage": role_for("document", texts)}


def name_in(model: str) -> str:
    """Return the domain that an id names, with a role or without."""
    return model.rpartition(":")[0] or model


def folder_name(folder: Path) -> str:
    """Return the id of a bundle that was given as a folder: the folder's name."""
    if not folder.is_dir():
        raise CseError(f"{folder}: no such folder; give a bundle (cse export), a bank (cse bank create) or NAME@STAGE")
    return folder.resolve().name


def _unknown(model: str, known: Sequence[str]) -> ServiceError:
    message = f"model {model[:80]!r} does not exist{nearest_name(model[:80], known)}; there is {_listed(known)}"
    message += "; no domain has centres: cse bank add --data" if model == AUTO else ""
    return ServiceError(404, message, param="model", code="model_not_found")


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none yet") + more
