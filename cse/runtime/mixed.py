"""Encode sentences of several domains together, with the prompts of a bank.

Legend: as in ``cse.runtime.domain``; ``b`` rows of a batch, which belong to ``u`` distinct domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cse.runtime.bank import BadDomainError, Bank, Chosen, NoDomainError
from cse.runtime.domain import AUTO, POOLERS, Domain, update_shapes
from cse.runtime.encode import Encoded, Prepared, as_texts, encode_prepared, prepare_sentences, unit_rows
from cse.runtime.uses import refuse_uses, text_of

INPUTS = ("domain", "prompt", "prompt_length", "position_shift", "trained_cls", "cls", "pooling")  # see ``feed``


class _Mixing(Protocol):
    """An encoder that takes a bank."""

    @property
    def dimension(self) -> int: ...

    @property
    def bank(self) -> Bank | None: ...

    @property
    def encode(self) -> Callable[..., NDArray[np.float32]]: ...


@dataclass(frozen=True)
class DomainEncoder:
    """An encoder of one domain of a bank, for code that knows nothing of banks.

    Attributes:
        domain: name, or a domain that need not be in the bank yet.
        wide: whether vectors have the bank's width, as those of several domains do; a narrower one ends in zeros.
    """

    mixing: _Mixing
    domain: str | Domain
    wide: bool = False

    @property
    def dimension(self) -> int:
        """Embedding width: that of the domain, or of the bank."""
        if self.wide:
            return self.mixing.dimension
        one = self._one
        return self.mixing.dimension if one is None else one.dimension

    @property
    def texts(self) -> dict[str, str]:
        """Its task texts by role, see ``Domain.texts``; none of ``auto``."""
        return {} if self._one is None else self._one.texts

    @property
    def query_side(self) -> Domain | None:
        """The domain if it is for queries alone."""
        return self._one if self._one is not None and self._one.for_queries else None

    @property
    def provider(self) -> str:
        """The attached provider, or ``torch``."""
        return getattr(self.mixing, "provider", "torch")

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize: bool = True,
        show_progress_bar: bool = False,
        *,
        role: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """Encode like the bank's encoder."""
        refuse_uses(None, dimensions)
        count = 1 if isinstance(sentences, str) else len(sentences)
        domain: Any = [self.domain] * count if self.wide else self.domain
        return self.mixing.encode(sentences, batch_size, normalize, show_progress_bar, domain=domain, role=role)

    @property
    def _one(self) -> Domain | None:
        if isinstance(self.domain, Domain):
            return self.domain
        bank = self.mixing.bank
        return None if bank is None or self.domain == AUTO else bank.domain(self.domain)


@dataclass(frozen=True)
class PreparedMixed:
    """Sentences of several domains whose tokens are known, see ``prepare_mixed``.

    Attributes:
        chosen: their domains (n); None where the text is to choose.
        prepared: the sentences with their domains; where the text is to choose, those alone, for the bare backbone.
    """

    bank: Bank
    domain: Chosen
    role: str | None
    texts: list[str]
    chosen: list[Domain | None]
    prepared: Prepared
    prepare: Callable[..., Prepared]
    single: bool

    def __len__(self) -> int:
        """Return n."""
        return len(self.texts)

    @property
    def unchosen(self) -> list[int]:
        """Which sentences choose their domain."""
        return [row for row, one in enumerate(self.chosen) if one is None]


def prepare_mixed(
    bank: Bank, sentences: str | Sequence[str], domain: Chosen, *, role: str | None = None, **options: Any
) -> PreparedMixed:
    """Tokenise sentences for their domains, as far as these do not depend on the text.

    Args:
        domain: see ``Bank.choose``; ``auto`` chooses by the text.
        role: of the texts, for domains that have roles: its task text goes before each; of a query side, ``query``
            takes it, and all others the bare backbone.
    """
    prepare: Callable[..., Prepared] = partial(prepare_sentences, **options)
    texts = [sentences] if isinstance(sentences, str) else as_texts(sentences)
    chosen = bank.choose(domain, len(texts))
    undecided = [text for text, one in zip(texts, chosen, strict=True) if one is None]
    if undecided:
        prepared = prepare(undecided, domains=[bank.bare] * len(undecided))
    else:
        prepared = _prepare_named(bank, prepare, texts, [one for one in chosen if one is not None], role)
    return PreparedMixed(bank, domain, role, texts, chosen, prepared, prepare, isinstance(sentences, str))


def _prepare_named(
    bank: Bank, prepare: Callable[..., Prepared], texts: list[str], named: list[Domain], role: str | None
) -> Prepared:
    for one in dict.fromkeys(named):
        check_role(role, one)
    if role is not None:
        texts = [one.texts[role] + text for one, text in zip(named, texts, strict=True)]
    return prepare(texts, domains=[one.in_role(role, bank.bare) for one in named])


def encode_mixed(
    mixed: PreparedMixed,
    run: Callable[[dict[str, NDArray[Any]]], NDArray[np.float32]],
    *,
    normalize: bool | None,
    **options: Any,
) -> Encoded:
    """Encode sentences, each with the prompts of its domain; the domains of a batch mix freely.

    One domain's vectors have its own width. In an array of several domains, the narrower ones end in zeros, which no
    cosine sees.

    Args:
        run: maps the model's inputs (see ``feed``) to pooled vectors (b, d).
        normalize: whether to scale embeddings to unit length; None: as each domain says.
    """
    bank, domain, chosen, prepared = mixed.bank, mixed.domain, list(mixed.chosen), mixed.prepared

    def embed(ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[Domain]) -> NDArray[np.float32]:
        return finish(
            run({"input_ids": ids, "attention_mask": mask, **feed(rows, bank.manifest.updates)}), rows, normalize
        )

    if mixed.unchosen:
        vectors = encode_prepared(prepared, embed=embed, normalize=False, **options).embeddings
        for row, one in zip(mixed.unchosen, nearest_domains(vectors, bank), strict=True):
            chosen[row] = one
    named = [one for one in chosen if one is not None]
    if mixed.unchosen:
        prepared = _prepare_named(bank, mixed.prepare, mixed.texts, named, mixed.role)
    encoded = encode_prepared(prepared, embed=embed, normalize=False, **options)
    encoded = encoded._replace(domains=[one.name for one in named])
    if isinstance(domain, str) and domain != AUTO:
        domain = named[0] if named else bank.domain(domain)
    if isinstance(domain, Domain):
        encoded = encoded._replace(embeddings=np.ascontiguousarray(encoded.embeddings[:, : domain.dimension]))
    return encoded._replace(embeddings=encoded.embeddings[0]) if mixed.single else encoded


def check_role(role: str | None, domain: Domain) -> None:
    """Refuse a role that a domain does not have."""
    if domain.texts:
        text_of(role, domain.texts)
    else:
        refuse_uses(role, None)


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


def finish(pooled: NDArray[np.float32], rows: Sequence[Domain], normalize: bool | None) -> NDArray[np.float32]:
    """Return embeddings (b, d) from pooled vectors: behind each row's projector and map, of unit length if wanted.

    A narrower embedding ends in zeros.

    Args:
        rows: domain of each row.
        normalize: whether to scale to unit length; None: as each domain says.
    """
    places: dict[Domain, list[int]] = {}
    for index, row in enumerate(rows):
        if row.projects:
            places.setdefault(row, []).append(index)
    for domain, mine in places.items():
        projected = domain.project(pooled[mine])
        pooled[mine] = 0.0
        pooled[mine, : domain.dimension] = projected
    unit = [index for index, row in enumerate(rows) if (row.facts.normalize if normalize is None else normalize)]
    pooled[unit] = unit_rows(pooled[unit])
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
