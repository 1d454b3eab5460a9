"""The domains of a folder: those of a bank, which come, change and go, or the only one of a bundle; and what the name
of a model means, ``meaning_of``.

The domains of a bank are whatever files its folder ``domains`` holds: each is put in place whole by one rename, so a
reader sees a domain's old file or its new one. Nothing lists the domains, so no list can disagree with them.

A domain is read when it is asked for. Its file is looked at each time, and read again if it has changed.
"""

from __future__ import annotations

import os
import time
from bisect import bisect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cse.artifact import Kind, short
from cse.errors import CseError, error_line, nearest
from cse.runtime.bundle import DOMAINS, MANIFEST, file_of, read_manifest, verify
from cse.runtime.domain import AUTO, KEPT_BYTES, SUFFIX, Domain, Outline, is_name, outline_of
from cse.runtime.domain_files import (
    COARSE_NS,
    Centres,
    FileCache,
    read_centres,
    read_domain,
    read_outline,
)
from cse.runtime.encode import unit_rows

_ADD = "add the domain again"
_OUTLINES = 64 * 2**20  # bytes
_SHOWN = 5  # domain names in a message
_NEAR = 50  # names on each side, in alphabetical order, that a wrong one is compared with
_Found = TypeVar("_Found")
Chosen = str | Sequence[str] | Domain | None


class NoDomainError(CseError):
    """The bank has no domain of this name."""


class BadDomainError(CseError):
    """A domain's file cannot be used."""


class Domains(NamedTuple):
    """The domains of a bank at one moment by name, in alphabetical order, and why a file is refused."""

    usable: Mapping[str, Domain]
    refused: Mapping[str, str]


class Bank:
    """A folder that is kept in sight: what is asked for is as the files are now.

    Args:
        folder: a bundle or a bank; the files that never change are checked against their hashes.
        kept_bytes: bytes of domains to keep in memory; the longest unused give way.
        name: of a bundle's only domain; empty: as the manifest calls it.
        whole: whether to check those hashes; False where whoever runs the graph does.

    Attributes:
        only: a bundle's only domain, which texts have where none is named; None of a bank.
        bare: the backbone without a prompt, as a domain: for ``auto``, and for documents beside a query side. Where the
            graph holds the only domain, it is that one.
    """

    def __init__(self, folder: Path | str, kept_bytes: int = KEPT_BYTES, *, name: str = "", whole: bool = True) -> None:
        self.folder = Path(folder)
        self.manifest = manifest = (verify if whole else read_manifest)(self.folder)
        self._place = self.folder / DOMAINS
        shape = manifest.shape
        empty = np.zeros((2 * shape.layers, shape.heads, 0, shape.head_size), np.float32)
        self.bare = Domain(manifest.domain, empty)
        self.only: Domain | None = None
        self._kept = FileCache(lambda path: read_domain(path, shape, kept_bytes), kept_bytes)
        self._outlines = FileCache(lambda path: read_outline(path, shape, kept_bytes), _OUTLINES)
        self._centres = Centres(lambda path: read_centres(path, shape, kept_bytes), shape.dimension)
        self._listed: tuple[int, Sequence[str]] = -1, ()  # time stamp of the folder, and the names in it
        self._held: dict[str, Domain] | None = None
        if manifest.only:
            place = self.folder / file_of(manifest.only)
            found = self.bare if manifest.constant else read_domain(place, shape)
            self.only = replace(found, facts=replace(found.facts, name=name or manifest.only))
            self.bare = self.only if manifest.constant else self.bare
            self._held = {self.only.name: self.only}

    def of_many(self) -> Self:
        """Return it; refuse a bundle of one model, to which no domain may be added."""
        if self.only is not None:
            raise CseError(f"{self.folder}: a bundle of one model, not a bank; `cse bank create` makes one")
        return self

    @property
    def fixed(self) -> bool:
        """Whether no file of a domain is looked at any more."""
        return self._held is not None

    def names(self) -> Sequence[str]:
        """Return the names of the domains in alphabetical order, without opening any; some may be damaged.

        Costs one ``stat`` of a folder while nothing changes.
        """
        if self._held is not None:
            return tuple(self._held)
        try:
            now, stamp = time.time_ns(), self._place.stat().st_mtime_ns
            if stamp != self._listed[0]:
                files = [name for name in os.listdir(self._place) if name[0] != "."]  # noqa: PTH208
                names = sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))
                self._listed = stamp if now - stamp > COARSE_NS else -1, tuple(names)  # -1: look again
        except OSError as error:
            raise self._unreachable(error) from None
        return self._listed[1]

    @property
    def bytes(self) -> int:
        """Bytes of the domains in memory."""
        return self._kept.bytes

    def domain(self, name: str) -> Domain:
        """Return one domain; costs one ``stat`` of its file while it does not change, and none of the folder."""
        if self._held is None:
            return self._at(name, self._kept)
        if name not in self._held:
            raise self._unknown(name)
        return self._held[name]

    def outline(self, name: str) -> Outline:
        """Return what the start of a domain's file says; costs and errors are those of ``domain``."""
        if self._held is None:
            return self._at(name, self._outlines)
        found = self.domain(name)
        return outline_of(found.facts, found.dimension)

    def domains(self) -> Domains:
        """Return all domains, which are read and in memory then."""
        found = dict(self.each())
        usable = {name: one for name, one in found.items() if isinstance(one, Domain)}
        return Domains(usable, {name: one for name, one in found.items() if isinstance(one, str)})

    def each(self) -> Iterator[tuple[str, Domain | str]]:
        """Yield each domain, or why its file is refused, by name; no more stay in memory than ``kept_bytes``."""
        for name in self.names():
            try:
                yield name, self.domain(name)
            except NoDomainError:  # removed meanwhile
                continue
            except BadDomainError as error:
                yield name, str(error)

    def centres(self, age: float = 0.0) -> Centres:
        """Return the centres of all domains, which are read at the first call and kept.

        Args:
            age: seconds in which changes may go unseen; then most calls cost nothing, else a ``stat`` of each file
                after every change of the folder.
        """
        try:
            if self._held is None:
                self._centres.look(self._place, age)
        except OSError as error:
            raise self._unreachable(error) from None
        return self._centres

    def nearest(self, bare: NDArray[np.float32], age: float = 0.0) -> list[Domain]:
        """Return the domain whose centres are nearest by cosine to each of the bare backbone's vectors (b, d).

        A domain that was removed or damaged meanwhile is passed over.
        """
        centres, unit = self.centres(age), unit_rows(bare)
        found: dict[str, Domain] = {}
        gone: set[str] = set()
        while True:
            names = centres.nearest(unit, gone)
            before = len(gone)
            for name in dict.fromkeys(names):
                try:
                    found[name] = found.get(name) or self.domain(name)
                except (NoDomainError, BadDomainError):
                    gone.add(name)
            if "" in gone or not centres:  # no name is left, or there was none
                raise NoDomainError(
                    f"{self.folder}: domain auto needs domains that were added with their text (cse bank add --data)"
                )
            if len(gone) == before:
                return [found[name] for name in names]

    def choose(self, domain: Chosen, count: int) -> list[Domain | None]:
        """Return the domain of each of ``count`` sentences; None for ``auto``.

        Args:
            domain: one name for all sentences, or one per sentence. A ``Domain`` stands for itself, in the bank or not.
                None: the only one.
        """
        domain = self.only if domain is None else domain
        if domain is None:
            raise CseError(f"{self.folder}: a bank; say whose prompts to use with domain: {_listed(self.names())}")
        if isinstance(domain, Domain):
            return [domain] * count
        names = [domain] * count if isinstance(domain, str) else list(domain)
        if len(names) != count:
            raise CseError(f"domain: {len(names)} names for {count} sentences; give one name, or one per sentence")
        for index, name in enumerate(names):
            if not isinstance(name, str):
                raise CseError(f"domain[{index}]: expected a name, found {type(name).__name__}; name one per sentence")
        known = {
            name: None if name == AUTO and self.only is None else self.domain(name) for name in dict.fromkeys(names)
        }
        return [known[name] for name in names]

    def texts_of(self, domain: Chosen) -> dict[str, str]:
        """Return the task texts of domains by role, see ``Domain.texts``; none if they differ."""
        names = [domain] if isinstance(domain, str | Domain) else list(domain or [])
        try:
            chosen = self.choose(list(dict.fromkeys(names)), len(set(names)))  # type: ignore[arg-type]
        except CseError:
            return {}
        of_each = [{} if one is None else one.texts for one in chosen]
        return of_each[0] if of_each and all(texts == of_each[0] for texts in of_each) else {}

    def hold(self, names: Collection[str]) -> Domains:
        """Keep the named domains as they are now, and no others, whatever happens to the folder from here on."""
        self._held = {name: self.domain(name) for name in names}
        self._centres.hold((name, domain.centres) for name, domain in self._held.items())
        return Domains(self._held, {})

    def _at(self, name: str, kept: FileCache[_Found]) -> _Found:
        """Return what is kept of a domain's file."""
        path = f"{self._place}{os.sep}{name}{SUFFIX}"
        try:
            known = is_name(name) or name in self.names()
            found = kept.get(path) if known else None
        except (FileNotFoundError, NotADirectoryError):
            found = None
        except OSError as error:
            self.names()  # raises if the folder is what cannot be read
            raise BadDomainError(f"{path}: cannot be read ({error_line(error)}); {_ADD}") from None
        if found is None:
            raise self._unknown(name)
        if isinstance(found, str):
            raise BadDomainError(found)
        return found

    def _unknown(self, name: str) -> NoDomainError:
        if self.only is not None:
            return NoDomainError(
                f"{self.folder}: a bundle of one model; domain {short(name)} needs a bank (cse bank create)"
            )
        names = self.names()
        return NoDomainError(f"{self.folder}: no domain {short(name)}{nearest_name(name, names)}; {_listed(names)}")

    def _unreachable(self, error: OSError) -> CseError:
        return CseError(f"{self._place}: cannot read the domains of the bank ({error_line(error)})")


def nearest_name(name: object, names: Sequence[str]) -> str:
    """Return ``nearest`` among names in alphabetical order; of thousands, those that begin alike are compared."""
    place = bisect(names, str(name))
    return nearest(str(name), names[max(0, place - _NEAR) : place + _NEAR])


@dataclass(frozen=True)
class Meaning:
    """A model by the name that a user gives it.

    Attributes:
        folder: its own; of a domain the bank's; of a hub id a path that need not exist.
        kind: of what lies there; None: nothing that this project trained or exported, so a backbone.
        domain: NAME of ``BANK:NAME``, or ``auto``; None: the name names none.
    """

    folder: Path
    kind: Kind | None
    domain: str | None = None

    @property
    def encodes(self) -> bool:
        """Whether ``OnnxEncoder`` opens its folder."""
        return self.kind in (Kind.BUNDLE, Kind.BANK)

    @property
    def whole_bank(self) -> bool:
        """Whether it is several models, of which one may have to be named."""
        return self.kind is Kind.BANK and self.domain is None

    def one(self) -> Meaning:
        """Return it; refuse a whole bank."""
        if self.whole_bank:
            domain = next(iter(Bank(self.folder, whole=False).names()), "NAME")
            raise CseError(f"{self.folder}: a bank; name one of its domains, for instance {self.folder}:{domain}")
        return self


def meaning_of(model: Path | str) -> Meaning:
    """Return what a name means, by the files that are there; what they hold is checked by whoever opens them."""
    folder, domain = Path(model), None
    before, colon, after = str(model).rpartition(":")
    if colon and (Path(before) / MANIFEST).is_file():
        folder, domain = Path(before), after
    if (folder / Kind.CHECKPOINT.manifest).is_file():
        return Meaning(folder, Kind.CHECKPOINT)
    if not (folder / MANIFEST).is_file():
        return Meaning(folder, None)
    return Meaning(folder, Kind.BUNDLE if read_manifest(folder).only else Kind.BANK, domain)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "the bank has no domain yet; `cse bank add` adds one"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(names[:_SHOWN])}{more}"
