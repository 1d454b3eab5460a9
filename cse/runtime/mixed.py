"""Encode sentences, each with its domain: several domains together, or the only one.

Legend: as in ``cse.runtime.domain``; ``b`` rows of a batch, which belong to ``u`` distinct domains.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cse.runtime.bank import BadDomainError, Bank, Chosen, NoDomainError
from cse.runtime.compatible import Compatible
from cse.runtime.domain import AUTO, POOLERS, Domain, update_shapes
from cse.runtime.encode import Embed, Encoded, Prepared, as_texts, encode_prepared, prepare_sentences, unit_rows
from cse.runtime.uses import text_of

INPUTS = ("domain", "prompt", "prompt_length", "position_shift", "trained_cls", "cls", "pooling")  # see ``feed``


class OfDomains(Compatible):
    """An encoder of the domains of a folder, in torch or not.

    Attributes:
        bank: the domains; those of a bank may change at any time.
    """

    bank: Bank
    _of: str | Domain | None = None
    _wide = False

    def of(self, domain: str | Domain | None, *, wide: bool = False) -> Self:
        """Return this encoder for code that names no domain: texts have this one.

        Args:
            domain: name, or a domain that need not be in the bank yet; None: the only one.
            wide: whether vectors have the bank's width, as those of several domains do; a narrower one ends in zeros.
        """
        view = copy.copy(self)
        view._of, view._wide = domain, wide
        return view

    @property
    def one(self) -> Domain | None:
        """The domain of texts that name none; None: there are several, or the text is to choose."""
        if isinstance(self._of, str):
            return None if self._of == AUTO else self.bank.domain(self._of)
        return self.bank.only if self._of is None else self._of

    @property
    def dimension(self) -> int:
        """Embedding width: that of the domain, or of the whole bank."""
        one = None if self._wide else self.one
        return self.bank.manifest.dimension if one is None else one.dimension

    @property
    def texts(self) -> dict[str, str]:  # type: ignore[override]
        """Task texts by role; none where no domain is the only one."""
        return {} if self.one is None else self.one.texts

    @property
    def query_side(self) -> Domain | None:
        """The domain, if it is for queries alone."""
        return self.one if self.one is not None and self.one.for_queries else None

    def texts_of(self, domain: Chosen) -> Mapping[str, str]:
        """Return the task texts of domains by role."""
        return self.texts if domain is None else self.bank.texts_of(domain)

    def _prepare(self, sentences: str | Sequence[str], domain: Chosen, *, role: str | None, **options: Any) -> Prepared:
        """Tokenise sentences for their domains, as far as these do not depend on the text.

        Args:
            domain: see ``Bank.choose``; ``auto`` chooses by the text.
            role: of the texts, for domains that have roles: its task text goes before each; of a query side, ``query``
                takes it, and all others the bare backbone.
            options: ``tokenizers`` and ``max_length`` of ``prepare_sentences``.
        """
        bank, wide = self.bank, domain is None and self._wide
        domain = self._of if domain is None else domain
        prepare: Callable[..., Prepared] = partial(prepare_sentences, **options)
        single = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else as_texts(sentences)
        chosen = bank.choose(domain, len(texts))

        def named(domains: Sequence[Domain]) -> Prepared:
            before = {one: text_of(role, one.texts) for one in dict.fromkeys(domains)}
            whole = texts
            if any(before.values()):
                whole = [before[one] + text for one, text in zip(domains, texts, strict=True)]
            found = prepare(whole, domains=[one.in_role(role, bank.bare) for one in domains])
            width = None if wide else _width(bank, domain, domains)
            return replace(found, single=single, names=[one.name for one in domains], width=width)

        rows = [row for row, one in enumerate(chosen) if one is None]
        if not rows:
            return named([one for one in chosen if one is not None])

        def again(vectors: NDArray[np.float32]) -> Prepared:
            found = dict(zip(rows, nearest_domains(vectors, bank), strict=True))
            return named([found[row] if one is None else one for row, one in enumerate(chosen)])

        return replace(prepare([texts[row] for row in rows], domains=[bank.bare] * len(rows)), again=again)


def _width(bank: Bank, domain: Chosen, chosen: Sequence[Domain]) -> int | None:
    """Return the numbers of a vector where all texts have one domain, which is named; else None."""
    if domain == AUTO or not (domain is None or isinstance(domain, str | Domain)):
        return None
    one = chosen[0] if chosen else bank.choose(domain, 1)[0]
    return None if one is None else one.dimension


def encode_mixed(prepared: Prepared, embed: Embed, **options: Any) -> Encoded:
    """Encode sentences, each with its domain; the domains of a batch mix freely.

    One domain's vectors have its own width. In an array of several domains, the narrower ones end in zeros, which no
    cosine sees.

    Args:
        embed: maps ids (b, l), mask (b, l) and the rows' domains (b) to vectors (b, d), see ``finish``.
        options: of ``encode_prepared``.
    """
    if prepared.again is not None:
        chosen_by = encode_prepared(prepared, embed=embed, **options | {"normalize": False, "keep": None})
        prepared = prepared.again(chosen_by.embeddings)
    return encode_prepared(prepared, embed=embed, **options)


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


def nearest_domains(bare: NDArray[np.float32], bank: Bank, age: float = 0.0) -> list[Domain]:
    """Return the domain whose centres are nearest by cosine to each text's bare vector (b, d).

    A domain that was removed or damaged meanwhile is passed over.

    Raises:
        NoDomainError: no domain of the bank has centres.
    """
    centres, unit = bank.centres(age), unit_rows(bare)
    found: dict[str, Domain] = {}
    gone: set[str] = set()
    while True:
        names = centres.nearest(unit, gone)
        before = len(gone)
        for name in dict.fromkeys(names):
            try:
                found[name] = found.get(name) or bank.domain(name)
            except (NoDomainError, BadDomainError):
                gone.add(name)
        if "" in gone or not centres:  # no name is left, or there was none
            raise NoDomainError(
                f"{bank.folder}: domain auto needs domains that were added with their text (cse bank add --data)"
            )
        if len(gone) == before:
            return [found[name] for name in names]


def _filled(prompt: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    if prompt.shape[2] == length:
        return prompt
    return np.pad(prompt, ((0, 0), (0, 0), (0, length - prompt.shape[2]), (0, 0)))
