"""One domain of a bank: its prompts in a small safetensors file, sealed like a manifest.

Legend: ``n`` layers, ``h`` attention heads, ``p`` prompt vectors, ``k`` head width, ``d`` the backbone's width, ``w``
numbers of a vector behind the domain's linear map, ``c`` centres; ``r`` rank of its updates, ``i`` inputs and ``o``
outputs of the layers that take them, ``x`` outputs of the other layers that have a bias; ``m`` labels.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from cse.artifact import check_limits, check_seal, digest, fields_of, sealed, short
from cse.errors import CseError
from cse.runtime.classifier import Classifier, ClassifierFacts, read_facts
from cse.runtime.uses import NO_TEXTS, QUERY, SIDES

AUTO = "auto"  # as a domain: choose by the text
DOMAIN_FORMAT = 2
KEPT_BYTES = 256 * 2**20  # of all domains in memory
SUFFIX = ".safetensors"
POOLERS = ("cls", "mean", "last")
_AGAIN = "add the domain again"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_HEADER = 2**20  # bytes; one takes about 3,000
_METADATA = "cse"
_START = b'{"__metadata__":{"cse":'  # of the header, behind its length
UPDATES = ("update_down", "update_up", "update_rest")
_PROJECTOR, _MAP = ("projector_weight", "projector_bias"), ("map_mean", "map_matrix")
_CLASSES = ("class_weight", "class_bias")
_TENSORS = ("prompt", "cls", *_PROJECTOR, *_MAP, *UPDATES, "centres", *_CLASSES)


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
        tensors = dict(zip(_CLASSES, (classifier.weight, classifier.bias), strict=True))
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
        metadata = {_METADATA: json.dumps(sealed(vars(self.facts)), sort_keys=True)}
        path.write_bytes(save(self.tensors(), metadata))

    def identity(self) -> str:
        """Return a hash of everything that makes the domain's vectors."""
        own = {**vars(self.facts), "hashes": {k: v for k, v in self.facts.hashes.items() if k not in _CLASSES}}
        return digest({key: value for key, value in own.items() if key not in ("metrics", "versions", "classes")})


@dataclass(frozen=True)
class Shape:
    """Shape of a bank's backbone, which its domains must fit; ``dimension`` is the width of its vectors.

    Attributes:
        positions: tokens that fit in its position table; a domain's may be fewer, see ``DomainFacts.max_length``.
        updates: i, o and x by ``UPDATES``; empty: a domain has none.
    """

    backbone: str
    layers: int
    heads: int
    head_size: int
    dimension: int
    words: int
    positions: int
    updates: Mapping[str, int] = field(default_factory=dict)
    adapters: Sequence[str] = ()


def update_shapes(widths: Mapping[str, int], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of updates of a rank, by ``UPDATES``; ``widths`` as ``Shape.updates``."""
    down, up, rest = (widths.get(name, 0) for name in UPDATES)
    return dict(zip(UPDATES, ((rank, down), (1 + rank, up), (rest,)), strict=True))


def is_domain(path: Path) -> bool:
    """Return whether this project wrote a file as a domain, be it damaged since: by the start of its header."""
    with path.open("rb") as file:
        return file.read(8 + len(_START))[8:] == _START


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


def open_file(path: Path, most: int) -> IO[bytes]:
    """Open a file to read; a pipe or a device is neither waited for nor read."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    facts = os.fstat(file.fileno())
    if stat.S_ISREG(facts.st_mode) and facts.st_size <= most:
        return file
    file.close()
    if not stat.S_ISREG(facts.st_mode):
        raise CseError(f"{path}: not a file but a pipe, a device or the like; remove it, or {_AGAIN}")
    raise CseError(
        f"{path}: {facts.st_size} bytes, and all domains in memory may have {most}; allow more (--max-domain-bytes)"
    )


def read_domain(path: Path, shape: Shape, most: int = KEPT_BYTES) -> Domain:
    """Read a domain's file of at most so many bytes, and check that it is whole and fits the backbone."""
    with open_file(path, most) as file:  # not mapped: one that somebody cuts meanwhile would end the process
        header = _read_header(path, file, shape)
        tensors = {name: _read_tensor(path, file, header, name) for name in header.places}
    _check_tensors(path, tensors, header.facts, shape)
    return Domain(header.facts, **tensors)


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


def read_outline(path: Path, shape: Shape, most: int = KEPT_BYTES) -> Outline:
    """Read the start of a domain's file; the tensors behind it are not read, nor checked."""
    with open_file(path, most) as file:
        facts, places, _ = _read_header(path, file, shape)
    return outline_of(facts, places["map_matrix"].shape[-1] if "map_matrix" in places else shape.dimension)


def read_centres(path: Path, shape: Shape, most: int = KEPT_BYTES) -> NDArray[np.float32] | None:
    """Read the centres (c, d) alone of a domain's file; None if it has none."""
    with open_file(path, most) as file:
        header = _read_header(path, file, shape)
        if "centres" not in header.places:
            return None
        rows = _read_tensor(path, file, header, "centres")
    whole = hashes_of({"centres": rows})["centres"] == header.facts.hashes.get("centres")
    if not whole or rows.shape[1:] != (shape.dimension,):
        raise _not_as_written(path)
    return rows


class _Place(NamedTuple):
    """Where a tensor lies behind the header: its first byte, the end of its last, and its shape."""

    first: int
    end: int
    shape: tuple[int, ...]


class _Header(NamedTuple):
    """The start of a file: its facts, where its tensors lie, and where it ends."""

    facts: DomainFacts
    places: dict[str, _Place]
    end: int


def _read_header(path: Path, file: IO[bytes], shape: Shape) -> _Header:
    """Read and check the start of a file, which ends with its last tensor."""
    length = int.from_bytes(_read(path, file, 8), "little")
    if length > _LONGEST_HEADER:
        raise _not_a_domain(path, "its header is cut")
    try:
        tree = json.loads(_read(path, file, length))
        text = tree.pop("__metadata__", {}).get(_METADATA)
        places = {}
        for name, entry in tree.items():
            first, end = map(int, entry["data_offsets"])
            *outer, last = map(int, entry["shape"])
            if entry["dtype"] != "F32" or not 0 <= first <= end or end - first != 4 * math.prod((*outer, last)):
                raise ValueError(name)
            places[name] = _Place(first, end, (*outer, last))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        raise _not_a_domain(path, "its header is damaged") from None
    facts = _facts(path, text)
    if facts.name != path.name.removesuffix(SUFFIX):
        raise CseError(f"{path}: holds domain {facts.name!r}, so it was copied or renamed; {_AGAIN}")
    _check_fit(path, facts, shape)
    if UPDATES[0] in places:
        _check_rank(path, places[UPDATES[0]].shape[0], shape)
    if os.fstat(file.fileno()).st_size != 8 + length + max((place.end for place in places.values()), default=0):
        raise _not_a_domain(path, "its tensors are cut")
    return _Header(facts, places, 8 + length)


def _read_tensor(path: Path, file: IO[bytes], header: _Header, name: str) -> NDArray[np.float32]:
    first, end, shape = header.places[name]
    file.seek(header.end + first)
    return np.frombuffer(bytearray(_read(path, file, end - first)), np.float32).reshape(shape)  # writable, for torch


def _read(path: Path, file: IO[bytes], size: int) -> bytes:
    found = file.read(size) or b""  # None of a file whose bytes are still to come
    if len(found) < size:
        raise _not_a_domain(path, "it is cut")
    return found


def check_fit(path: Path, facts: DomainFacts, tensors: Mapping[str, NDArray[Any]], shape: Shape) -> None:
    """Refuse a domain that does not fit the backbone or its own hashes."""
    _check_fit(path, facts, shape)
    _check_tensors(path, tensors, facts, shape)


def _check_fit(path: Path, facts: DomainFacts, shape: Shape) -> None:
    if facts.backbone != shape.backbone:
        raise CseError(
            f"{path}: made for another backbone (SHA-256 {facts.backbone[:12]}..., the bank's is "
            f"{shape.backbone[:12]}...); train it on the bank's"
        )
    if facts.pooler not in POOLERS:
        raise CseError(f"{path}: pooler {facts.pooler[:20]!r} is not one of {', '.join(POOLERS)}; {_AGAIN}")
    if facts.side not in SIDES:
        raise CseError(f"{path}: side {facts.side[:20]!r} is not one of {', '.join(SIDES)}; {_AGAIN}")
    if (facts.width, facts.words) != (shape.dimension, shape.words):
        raise CseError(
            f"{path}: made for vectors of {short(facts.width)} numbers, and word vectors of "
            f"{short(facts.words)}, where the backbone has {shape.dimension} and {shape.words}; {_AGAIN}"
        )
    limits = {"position_shift": (0, shape.positions), "max_length": (3, shape.positions - facts.position_shift)}
    check_limits({key: getattr(facts, key) for key in limits}, limits, path, _AGAIN)


def _not_a_domain(path: Path, reason: str) -> CseError:
    return CseError(f"{path}: truncated or not a domain of a bank ({reason}); {_AGAIN}")


def _not_as_written(path: Path) -> CseError:
    return CseError(f"{path}: its tensors are not those it was written with (SHA-256 differs); {_AGAIN}")


def _facts(path: Path, text: str | None) -> DomainFacts:
    try:
        tree = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        tree = None
    if not isinstance(tree, dict) or tree.get("format") != DOMAIN_FORMAT:
        raise CseError(f"{path}: not a domain of format {DOMAIN_FORMAT}; {_AGAIN} with this version of cse")
    check_seal(tree, path, _AGAIN)
    return fields_of(DomainFacts, tree, path, _AGAIN)


def _check_rank(path: Path, rank: int, shape: Shape) -> None:
    if rank > shape.dimension:
        raise CseError(
            f"{path}: updates of rank {rank}, and the backbone's weights have {shape.dimension} at most; "
            "train it with a smaller train.lora_rank"
        )


def _check_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], facts: DomainFacts, shape: Shape) -> None:
    width = shape.dimension

    def own(name: str, axis: int) -> int:
        """Return a size that is the domain's own."""
        found = tensors[name].shape[axis : axis + 1] if name in tensors else ()
        return found[0] if found else 0

    if tensors.keys() & set(UPDATES) and (not shape.updates or facts.adapters != list(shape.adapters)):
        taken = ", ".join(shape.adapters) or "biases alone" if shape.updates else "prompts alone"
        raise CseError(
            f"{path}: has biases or low-rank updates for a bank with adapters ({', '.join(facts.adapters)}), and this "
            f"one takes {taken}; add its checkpoint again to a bank that takes them (bank.adapters)"
        )
    rank, labels = own(UPDATES[0], 0), len(read_facts(facts.classes, path, _AGAIN).labels) if facts.classes else 0
    _check_rank(path, rank, shape)
    wanted: dict[str, tuple[int, ...]] = {
        "prompt": (2 * shape.layers, shape.heads, own("prompt", 2), shape.head_size),
        "cls": (shape.words,),
        "projector_weight": (width, width),
        "projector_bias": (width,),
        "map_mean": (width,),
        "map_matrix": (width, min(own("map_matrix", 1) or width, width)),
        "centres": (own("centres", 0) or 1, width),
        "class_weight": (labels, own("map_matrix", 1) or width),
        "class_bias": (labels,),
        **update_shapes(shape.updates, rank),
    }
    missing = {"prompt"}
    for together in map(set, (_PROJECTOR, _MAP, UPDATES, _CLASSES)):
        missing |= together if together & tensors.keys() else set()
    if missing - tensors.keys() or tensors.keys() - wanted.keys() or hashes_of(tensors) != facts.hashes:
        raise _not_as_written(path)
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32 or tensor.shape != wanted[name]:
            raise CseError(
                f"{path}: {name} is {tensor.dtype} {tensor.shape}, the backbone needs float32 {wanted[name]}; {_AGAIN}"
            )
        if not np.isfinite(tensor).all():
            raise CseError(f"{path}: {name} holds values that are not finite; train again with a lower learning rate")
