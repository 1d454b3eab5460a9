"""The files of a bank's domains: read, checked and kept in memory until they change, as are the centres of all.

The nearest domain of a text among thousands is found in a few matrices. A domain's name decides in which its centres
lie, so a domain that comes, changes or goes builds one of them again, from rows that are in memory. A matrix never
changes: whoever compares texts with it may go on.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from cse.artifact import check_limits, check_seal, fields_of, short
from cse.errors import CseError
from cse.runtime.classifier import read_facts
from cse.runtime.domain import (
    CLASSES,
    DOMAIN_FORMAT,
    KEPT_BYTES,
    MAP,
    METADATA,
    POOLERS,
    PROJECTOR,
    SUFFIX,
    UPDATES,
    Domain,
    DomainFacts,
    Outline,
    Shape,
    hashes_of,
    outline_of,
    update_shapes,
)
from cse.runtime.uses import SIDES

# A time stamp may be this coarse (network file systems count whole seconds): what changed so recently may change again
# without a new stamp.
COARSE_NS = 2_500_000_000
_OUTLINE_BYTES = 800  # of an outline, or of why a file is refused, measured
_BLOCKS = 64
_AGAIN = "add the domain again"
_LONGEST_HEADER = 2**20  # bytes; one takes about 3,000
_START = b'{"__metadata__":{"cse":'  # of the header, behind its length
Stamp = tuple[int, int, int, int, int]
Value = TypeVar("Value")


# ---- a file ---------------------------------------------------------------------------------------------------------


def is_domain(path: Path) -> bool:
    """Return whether this project wrote a file as a domain, be it damaged since: by the start of its header."""
    with path.open("rb") as file:
        return file.read(8 + len(_START))[8:] == _START


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
        facts, places = _read_header(path, file, shape)
        tensors = {name: _read_tensor(path, file, place) for name, place in places.items()}
    _check_tensors(path, tensors, facts, shape)
    return Domain(facts, **tensors)


def read_outline(path: Path, shape: Shape, most: int = KEPT_BYTES) -> Outline:
    """Read the start of a domain's file; the tensors behind it are not read, nor checked."""
    with open_file(path, most) as file:
        facts, places = _read_header(path, file, shape)
    return outline_of(facts, places["map_matrix"].shape[-1] if "map_matrix" in places else shape.dimension)


def read_centres(path: Path, shape: Shape, most: int = KEPT_BYTES) -> NDArray[np.float32] | None:
    """Read the centres (c, d) alone of a domain's file; None if it has none."""
    with open_file(path, most) as file:
        facts, places = _read_header(path, file, shape)
        if "centres" not in places:
            return None
        rows = _read_tensor(path, file, places["centres"])
    whole = hashes_of({"centres": rows})["centres"] == facts.hashes.get("centres")
    if not whole or rows.shape[1:] != (shape.dimension,):
        raise _not_as_written(path)
    return rows


class _Place(NamedTuple):
    """Where a tensor lies: its first byte, the end of its last, and its shape."""

    first: int
    end: int
    shape: tuple[int, ...]


def _read_header(path: Path, file: IO[bytes], shape: Shape) -> tuple[DomainFacts, dict[str, _Place]]:
    """Read and check the start of a file, which ends with its last tensor."""
    length = int.from_bytes(_read(path, file, 8), "little")
    if length > _LONGEST_HEADER:
        raise _not_a_domain(path, "its header is cut")
    try:
        tree = json.loads(_read(path, file, length))
        text = tree.pop("__metadata__", {}).get(METADATA)
        places = {}
        for name, entry in tree.items():
            first, end = map(int, entry["data_offsets"])
            *outer, last = map(int, entry["shape"])
            if entry["dtype"] != "F32" or not 0 <= first <= end or end - first != 4 * math.prod((*outer, last)):
                raise ValueError(name)
            places[name] = _Place(8 + length + first, 8 + length + end, (*outer, last))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
        raise _not_a_domain(path, "its header is damaged") from None
    facts = _facts(path, text)
    if facts.name != path.name.removesuffix(SUFFIX):
        raise CseError(f"{path}: holds domain {facts.name!r}, so it was copied or renamed; {_AGAIN}")
    _check_fit(path, facts, shape)
    if UPDATES[0] in places:
        _check_rank(path, places[UPDATES[0]].shape[0], shape)
    if os.fstat(file.fileno()).st_size != max((place.end for place in places.values()), default=8 + length):
        raise _not_a_domain(path, "its tensors are cut")
    return facts, places


def _read_tensor(path: Path, file: IO[bytes], place: _Place) -> NDArray[np.float32]:
    file.seek(place.first)
    content = bytearray(_read(path, file, place.end - place.first))  # writable, for torch
    return np.frombuffer(content, np.float32).reshape(place.shape)


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
    for together in map(set, (PROJECTOR, MAP, UPDATES, CLASSES)):
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


# ---- in memory ------------------------------------------------------------------------------------------------------


def _stamp_of(status: os.stat_result, now: int) -> Stamp:
    """Return what tells a file from its other versions; of one that changed just now, no later stamp is the same.

    Args:
        now: nanoseconds since the epoch, from before the status was asked for.
    """
    young = now if now - status.st_ctime_ns <= COARSE_NS else 0
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size, young


class _Entry(NamedTuple, Generic[Value]):
    stamp: Stamp
    value: Value | str
    size: int


class FileCache(Generic[Value]):
    """Domains or their outlines, of ``limit`` bytes together; the one read last stays, be it larger."""

    def __init__(self, read: Callable[[Path], Value], limit: int) -> None:
        self._read, self._limit = read, limit
        self._entries: OrderedDict[str, _Entry[Value]] = OrderedDict()
        self.bytes = 0  # of all values
        self._lock = threading.Lock()

    def get(self, path: str) -> Value | str:
        """Return the value of a file as it is now, or why it is refused.

        Costs one ``stat`` of the file while it does not change. Several threads may read one file at once; they all get
        the same value, which stays if the file says the same again.
        """
        now = time.time_ns()
        try:
            stamp = _stamp_of(os.stat(path), now)  # noqa: PTH116 - of a string: half the time
            with self._lock:
                entry = self._entries.get(path)
                if entry is not None and entry.stamp == stamp:
                    self._entries.move_to_end(path)
                    return entry.value
            value: Value | str
            try:
                value = self._read(Path(path))  # if the file changes meanwhile, the next call sees another stamp
            except CseError as error:
                value = str(error)
        except FileNotFoundError:
            with self._lock:
                self._forget(path)
            raise
        size = value.nbytes if isinstance(value, Domain) else _OUTLINE_BYTES
        with self._lock:
            old = self._forget(path)
            # facts hold the hashes of all tensors
            if old and isinstance(value, Domain) and isinstance(old.value, Domain) and old.value.facts == value.facts:
                value = old.value
            self._entries[path] = _Entry(stamp, value, size)
            self.bytes += size
            while self.bytes > self._limit and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))
        return value

    def _forget(self, path: str) -> _Entry[Value] | None:
        entry = self._entries.pop(path, None)
        self.bytes -= 0 if entry is None else entry.size
        return entry


class _Block(NamedTuple):
    """Centres (r, d) of some domains: by name, the stamp of its file, its first row and the row behind its last; and
    whose each row is (r).
    """

    rows: dict[str, tuple[Stamp | None, int, int]]
    names: NDArray[np.object_]
    matrix: NDArray[np.float32]


class Centres:
    """Centres of the domains in a folder."""

    def __init__(self, read: Callable[[Path], NDArray[np.float32] | None], width: int) -> None:
        self._read, self._width = read, width
        self._blocks = [self._block([])] * _BLOCKS
        self._stamp, self._looked = -1, -np.inf
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether any domain has centres."""
        return any(len(block.names) for block in self._blocks)

    def look(self, folder: Path, age: float = 0.0) -> None:
        """Read what is new or changed, unless somebody looked less than ``age`` seconds ago."""
        if time.monotonic() - self._looked < age:
            return
        with self._lock:
            begin, now = time.monotonic(), time.time_ns()
            if begin - self._looked < age:
                return
            stamp = folder.stat().st_mtime_ns
            if stamp != self._stamp:
                self._blocks = self._changed(folder, now)
                self._stamp = stamp if now - stamp > COARSE_NS else -1
            self._looked = begin

    def hold(self, found: Iterable[tuple[str, NDArray[np.float32] | None]]) -> None:
        """Take these centres by name, and no others."""
        self._blocks = [self._block([(name, None, rows) for name, rows in found if rows is not None])]

    def nearest(self, unit: NDArray[np.float32], without: Collection[str] = ()) -> list[str]:
        """Return the domain whose centre has the largest cosine with each of some vectors (n, d) of unit length.

        Args:
            without: domains to pass over; the name is empty where no other is left.
        """
        best, names = np.full(len(unit), -np.inf, np.float32), np.full(len(unit), "", object)
        for block in self._blocks:
            if not len(block.names):
                continue
            scores = unit @ block.matrix.T
            for first, end in (block.rows[name][1:] for name in block.rows.keys() & without):
                scores[:, first:end] = -np.inf
            place = scores.argmax(axis=1)
            found = np.take_along_axis(scores, place[:, None], axis=1)[:, 0]
            better = found > best
            best[better], names[better] = found[better], block.names[place[better]]
        return list(names)

    def _changed(self, folder: Path, now: int) -> list[_Block]:
        stamps: list[dict[str, Stamp]] = [{} for _ in self._blocks]
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    name = entry.name.removesuffix(SUFFIX)
                    with suppress(OSError):  # gone, or it is refused when it is asked for
                        stamps[crc32(os.fsencode(name)) % _BLOCKS][name] = _stamp_of(entry.stat(), now)
        return [
            old if {name: row[0] for name, row in old.rows.items()} == new else self._again(folder, old, new)
            for old, new in zip(self._blocks, stamps, strict=True)
        ]

    def _again(self, folder: Path, old: _Block, stamps: dict[str, Stamp]) -> _Block:
        found: list[tuple[str, Stamp | None, NDArray[np.float32] | None]] = []
        for name, stamp in sorted(stamps.items()):
            before, first, end = old.rows.get(name, (None, 0, 0))
            path = folder / f"{name}{SUFFIX}"
            try:
                rows = old.matrix[first:end] if before == stamp else self._read(path)
            except (CseError, OSError):  # it is refused when it is asked for
                rows = None
            found.append((name, stamp, rows))
        return self._block(found)

    def _block(self, found: Iterable[tuple[str, Stamp | None, NDArray[np.float32] | None]]) -> _Block:
        rows: dict[str, tuple[Stamp | None, int, int]] = {}
        names: list[str] = []
        parts = [np.empty((0, self._width), np.float32)]
        for name, stamp, own in found:
            count = 0 if own is None else len(own)
            rows[name] = stamp, len(names), len(names) + count
            names += [name] * count
            parts += [] if own is None else [own]
        return _Block(rows, np.array(names, object), np.concatenate(parts))
