"""One domain of a bank, and many in a batch: what differs between rows that share a backbone.

Its prompts lie in a small safetensors file, sealed like a manifest; ``cse.runtime.domain_files`` reads it.

Legend: ``n`` layers, ``h`` attention heads, ``p`` prompt vectors, ``k`` head width, ``d`` the backbone's width, ``w``
numbers of a vector behind the domain's linear map, ``c`` centres; ``r`` rank of its updates, ``i`` inputs and ``o``
outputs of the layers that take them, ``x`` outputs of the other layers that have a bias; ``m`` labels; ``b`` rows of a
batch, which belong to ``u`` distinct domains.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from cse.artifact import digest, sealed
from cse.errors import CseError
from cse.runtime.classifier import Classifier, ClassifierFacts
from cse.runtime.uses import NO_TEXTS, QUERY

AUTO = "auto"  # as a domain: choose by the text
DOMAIN_FORMAT = 2
KEPT_BYTES = 256 * 2**20  # of all domains in memory
SUFFIX = ".safetensors"
POOLERS = ("cls", "mean", "last")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
METADATA = "cse"
UPDATES = ("update_down", "update_up", "update_rest")
PROJECTOR, MAP = ("projector_weight", "projector_bias"), ("map_mean", "map_matrix")
CLASSES = ("class_weight", "class_bias")
_TENSORS = ("prompt", "cls", *PROJECTOR, *MAP, *UPDATES, "centres", *CLASSES)


@dataclass(frozen=True)
class DomainFacts:
    """What a domain's file says beside its tensors.

    Attributes:
        backbone: SHA-256 of the backbone's weights that the prompts were trained for.
        position_shift: positions that the prompt takes before the first token.
        max_length: maximum tokens per sentence, special tokens included.
        hashes: SHA-256 (hex) of each tensor's bytes.
        prompt: summary of the prompt (kind, length, ...); empty for the bare backbone.
        checkpoint: identity of the checkpoint it came from; empty for the bare backbone.
        texts: task texts by role, which go before a text.
        side: ``both``, or ``query``: texts of every other role have the bare backbone's vectors.
        adapters: layers whose low-rank updates it holds, in order.
        classes: ``ClassifierFacts`` of its classifier, as JSON; empty without one.
    """

    format: int
    name: str
    backbone: str
    pooler: str
    normalize: bool
    position_shift: int
    max_length: int
    width: int
    words: int
    hashes: dict[str, Any]
    prompt: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    checkpoint: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    side: str = "both"
    adapters: list[str] = field(default_factory=list)
    classes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Domain:
    """A domain in memory; nothing in it changes, so requests in progress keep the prompts they started with.

    Attributes:
        prompt: keys and values (2n, h, p, k): layer 0's keys, its values, layer 1's keys, ...; ``p`` may be 0.
        cls: trained word vector of ``[CLS]``, or None for the backbone's own.
        projector_weight, projector_bias: linear layer (d, d), (d,) of a tanh projector, or None.
        map_mean, map_matrix: of a linear map (d,), (d, w) behind that, such as a head fitted to labels, or None:
            ``y = (x - mean) matrix``.
        update_down: one factor (r, i) of what is added to the weights of layers, or None, as the next two; ``r`` may
            be 0.
        update_up: what is added to their biases, and the other factor (1 + r, o).
        update_rest: what is added to the biases of the other layers (x,).
        centres: unit-length vectors (c, d) that the bare backbone gives to typical texts of the domain, or None.
        class_weight, class_bias: of its classifier (m, w), (m,), or None.
    """

    facts: DomainFacts
    prompt: NDArray[np.float32]
    cls: NDArray[np.float32] | None = None
    projector_weight: NDArray[np.float32] | None = None
    projector_bias: NDArray[np.float32] | None = None
    map_mean: NDArray[np.float32] | None = None
    map_matrix: NDArray[np.float32] | None = None
    update_down: NDArray[np.float32] | None = None
    update_up: NDArray[np.float32] | None = None
    update_rest: NDArray[np.float32] | None = None
    centres: NDArray[np.float32] | None = None
    class_weight: NDArray[np.float32] | None = None
    class_bias: NDArray[np.float32] | None = None

    @property
    def name(self) -> str:
        """The name in its facts."""
        return self.facts.name

    @property
    def length(self) -> int:
        """Number of prompt vectors."""
        return self.prompt.shape[2]

    @property
    def max_length(self) -> int:
        """Maximum tokens per sentence, special tokens included."""
        return self.facts.max_length

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return self.facts.width if self.map_matrix is None else self.map_matrix.shape[1]

    @property
    def projects(self) -> bool:
        """Whether anything stands behind the pooler."""
        return self.projector_weight is not None or self.map_matrix is not None

    @property
    def prompted(self) -> bool:
        """Whether it changes what the layers of the backbone see."""
        return self.length > 0 or self.cls is not None or self.update_up is not None

    @property
    def rank(self) -> int:
        """Rank of its low-rank updates; 0 without."""
        return 0 if self.update_down is None else len(self.update_down)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @cached_property
    def bytes_filled(self) -> int:
        """Bytes of what the other domains of a batch are filled up to."""
        return sum(one.nbytes for one in (self.prompt, self.update_down, self.update_up) if one is not None)

    @property
    def texts(self) -> dict[str, str]:
        """Task texts by role; a query side has roles even if none of them has a text."""
        return self.facts.texts or (NO_TEXTS if self.for_queries else {})

    @property
    def for_queries(self) -> bool:
        """Whether it is a query side, for role ``query`` alone."""
        return self.facts.side == QUERY

    @property
    def source(self) -> str:
        """Identity of its checkpoint, or of itself if it has none."""
        return self.facts.checkpoint or self.identity()

    @cached_property
    def classifier(self) -> Classifier | None:
        """What tells the labels of its vectors; None if it was not made of labelled texts."""
        if self.class_weight is None or self.class_bias is None:
            return None
        return Classifier(ClassifierFacts(**self.facts.classes), self.class_weight, self.class_bias)

    def classifying(self, classifier: Classifier | None) -> Self:
        """Return the domain with a classifier."""
        if classifier is None:
            return self
        tensors = dict(zip(CLASSES, (classifier.weight, classifier.bias), strict=True))
        hashes = self.facts.hashes | hashes_of(tensors)
        return replace(self, facts=replace(self.facts, hashes=hashes, classes=asdict(classifier.facts)), **tensors)

    def in_role(self, role: str | None, bare: Domain) -> Domain:
        """Return what encodes a text in a role: this domain, or the bare one if this is a query side and not for it."""
        return bare if self.for_queries and role != QUERY else self

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the tensors by name."""
        found = {name: getattr(self, name) for name in _TENSORS}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return vectors (b, w) of pooled vectors (b, d), which it may overwrite, behind projector and linear map."""
        if self.projector_weight is not None and self.projector_bias is not None:
            np.tanh(vectors @ self.projector_weight.T + self.projector_bias, out=vectors)
        if self.map_mean is None or self.map_matrix is None:
            return vectors
        vectors -= self.map_mean
        return vectors @ self.map_matrix

    def write(self, path: Path) -> None:
        """Write the file."""
        metadata = {METADATA: json.dumps(sealed(vars(self.facts)), sort_keys=True)}
        path.write_bytes(save(self.tensors(), metadata))

    def identity(self) -> str:
        """Return a hash of everything that makes the domain's vectors."""
        own = {**vars(self.facts), "hashes": {k: v for k, v in self.facts.hashes.items() if k not in CLASSES}}
        return digest({key: value for key, value in own.items() if key not in ("metrics", "versions", "classes")})


@dataclass(frozen=True)
class Shape:
    """Shape of a bank's backbone, which its domains must fit; ``dimension`` is the width of its vectors.

    Attributes:
        backbone: SHA-256 of its weights.
        positions: tokens that fit in its position table; a domain's may be fewer, see ``DomainFacts.max_length``.
        updates: i, o and x by ``UPDATES``; empty: a domain has none.
        adapters: layers that take low-rank updates.
    """

    backbone: str
    layers: int
    heads: int
    head_size: int
    dimension: int
    words: int
    positions: int
    updates: dict[str, int] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)


def update_shapes(widths: Mapping[str, int], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of updates of a rank, by ``UPDATES``; ``widths`` as ``Shape.updates``."""
    down, up, rest = (widths.get(name, 0) for name in UPDATES)
    return dict(zip(UPDATES, ((rank, down), (1 + rank, up), (rest,)), strict=True))


def is_name(name: object) -> bool:
    """Return whether a domain may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a domain's name."""
    if not is_name(name):
        raise CseError(
            f"domain {name[:80]!r}: not a valid name; use up to 64 letters, digits, dots, dashes and underscores, "
            "starting with a letter or digit"
        )
    if name.lower() == AUTO:
        raise CseError(f"domain {name!r}: the name stands for the nearest domain; choose another")
    return name


def hashes_of(tensors: Mapping[str, NDArray[np.float32]]) -> dict[str, str]:
    """Return the SHA-256 (hex) of each tensor's bytes."""
    return {name: hashlib.sha256(np.ascontiguousarray(tensor).data).hexdigest() for name, tensor in tensors.items()}


class Outline(NamedTuple):
    """What the start of a domain's file says, which is enough to list it; see ``Domain`` and ``DomainFacts``."""

    dimension: int
    max_length: int
    normalize: bool
    queries: bool
    side: str
    centres: bool


def outline_of(facts: DomainFacts, dimension: int) -> Outline:
    """Return what is listed of a domain with vectors of so many numbers."""
    queries = QUERY in facts.texts or facts.side == QUERY
    return Outline(dimension, facts.max_length, facts.normalize, queries, facts.side, "centres" in facts.hashes)


# ---- in a batch ----------------------------------------------------------------------------------------------------


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
