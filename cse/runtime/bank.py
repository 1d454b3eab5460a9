"""The prompt bank: one backbone as an ONNX graph, and one small file per domain.

A bank contains ``model.onnx`` (and ``model.onnx.data`` if weights are stored separately), ``tokenizer.json``,
``bank.json``, and a folder ``domains`` with a file per domain. The manifest ``bank.json`` lists the files that never
change. The domains are whatever files the folder holds: each is put in place whole by one rename, so a reader sees a
domain's old file or its new one. Nothing lists the domains, so no list can disagree with them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cse.errors import CseError, error_line, nearest
from cse.runtime.bundle import LONGEST, MANIFEST, MODEL, SHORTEST, TOKENIZER, WIDEST
from cse.runtime.domain import AUTO, SUFFIX, Domain, DomainFacts, Shape, read_domain
from cse.runtime.seal import check_entries, check_files, check_limits, check_seal, fields_of, read_object, sealed, short
from cse.runtime.uses import NO_TEXTS

FORMAT = 1
BANK = "bank.json"
DOMAINS = "domains"
_AGAIN = "create the bank again"
_ADD = "add the domain again"
# A folder's time stamp may be this coarse (network file systems count whole seconds): a folder that changed so
# recently may change again without a new stamp.
_COARSE_NS = 2_500_000_000
_SHOWN = 5  # domain names in a message


@dataclass(frozen=True)
class BankManifest:
    """Contents of ``bank.json``, except the seal over them.

    Attributes:
        format: version of this layout.
        dimension: embedding width, the backbone's hidden width.
        layers, heads, head_size: of the backbone.
        pooler: pooler that the backbone was made for.
        max_length: most tokens per sentence, special tokens included, where no domain is named.
        positions: tokens that fit in the backbone's position table.
        pad_id: padding token id.
        files: SHA-256 (hex) and size in bytes of each file beside the domains.
        backbone: name, revision and SHA-256 of the backbone's weights.
        versions: versions of the packages that wrote the bank.
        parity: largest difference from torch, and where it was measured.
    """

    format: int
    dimension: int
    layers: int
    heads: int
    head_size: int
    pooler: str
    max_length: int
    positions: int
    pad_id: int
    files: dict[str, Any]
    backbone: dict[str, Any]
    versions: dict[str, Any] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """What a domain must fit."""
        sha256 = str(self.backbone.get("sha256"))
        return Shape(sha256, self.layers, self.heads, self.head_size, self.dimension, self.positions)

    def write(self, folder: Path) -> None:
        """Write ``bank.json`` into the folder."""
        text = json.dumps(sealed(dataclasses.asdict(self)), indent=2, ensure_ascii=True)
        (folder / BANK).write_text(text + "\n", encoding="ascii")


Chosen = str | Sequence[str] | Domain | None


class Domains(NamedTuple):
    """The domains of a bank at one moment.

    Attributes:
        usable: domains by name, in alphabetical order.
        refused: why a file cannot be used, by name.
    """

    usable: Mapping[str, Domain]
    refused: Mapping[str, str]


class _Seen(NamedTuple):
    """A file that was read: its stamp, and the domain or the reason against it."""

    stamp: tuple[int, int, int]
    found: Domain | str


class Bank:
    """A bank folder that is kept in sight: ``domains`` always returns what it holds now.

    Args:
        folder: the bank; the files beside the domains are checked against their hashes.

    Attributes:
        manifest: contents of ``bank.json``.
        bare: the backbone without a prompt, as a domain: for ``auto``, and for documents beside a query side.

    Raises:
        CseError: not a bank, or a damaged one. A damaged domain does not raise; it is refused when asked for.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest = read_bank_manifest(self.folder)
        check_files(self.folder, self.manifest.files, BANK, "copy the whole bank again")
        self.bare = _bare(self.manifest)
        self._lock = threading.Lock()
        self._stamp = -1  # modification time of the folder, nanoseconds; -1: look again
        self._seen: dict[str, _Seen] = {}
        self._now = Domains({}, {})
        self._held = False
        self.domains()

    def domains(self) -> Domains:
        """Return the domains, after reading what was added or replaced since the last call.

        Costs one ``stat`` of a folder while nothing changes.

        Raises:
            CseError: the folder is gone or cannot be read.
        """
        if self._held:
            return self._now
        place = self.folder / DOMAINS
        try:
            if place.stat().st_mtime_ns != self._stamp:
                with self._lock:
                    self._look(place)
        except OSError as error:
            raise CseError(f"{place}: cannot read the domains of the bank ({error_line(error)})") from None
        return self._now

    def choose(self, domains: Domains, domain: Chosen, count: int) -> list[Domain | None]:
        """Return the domain of each of ``count`` sentences; None for ``auto``.

        Args:
            domains: from ``domains``.
            domain: one name for all sentences, or one per sentence. A ``Domain`` stands for itself, in the bank or not.
            count: number of sentences.

        Raises:
            CseError: no domain was given, the number of names differs, or a name is unknown or refused.
        """
        if domain is None:
            raise CseError(f"{self.folder}: a bank; say whose prompts to use with domain: {_listed(domains)}")
        if isinstance(domain, Domain):
            return [domain] * count
        names = [domain] * count if isinstance(domain, str) else list(domain)
        if len(names) != count:
            raise CseError(f"domain: {len(names)} names for {count} sentences; give one name, or one per sentence")
        for index, name in enumerate(names):
            if not isinstance(name, str):
                raise CseError(f"domain[{index}]: expected a name, found {type(name).__name__}; name one per sentence")
        known = {name: None if name == AUTO else self._named(name, domains) for name in dict.fromkeys(names)}
        return [known[name] for name in names]

    def texts_of(self, domain: Chosen) -> dict[str, str]:
        """Return the roles of domains, see ``Domain.texts``: those that all of them have."""
        usable = self.domains().usable
        names = [domain] if isinstance(domain, str | Domain) else list(domain or [])
        found = [one if isinstance(one, Domain) else usable.get(one) for one in dict.fromkeys(names)]
        alike = bool(found) and all(one is not None and one.texts for one in found)
        return dict(NO_TEXTS) if alike else {}

    def domain(self, name: str) -> Domain:
        """Return one domain.

        Raises:
            CseError: it is unknown, or its file is refused.
        """
        return self._named(name, self.domains())

    def hold(self, names: Collection[str]) -> Domains:
        """Keep the named domains as they are now, and no others, whatever happens to the folder from here on.

        Raises:
            CseError: one of them is unknown or refused.
        """
        now = self.domains()
        self._now = Domains({name: self._named(name, now) for name in names}, {})
        self._held = True
        return self._now

    def _named(self, name: str, domains: Domains) -> Domain:
        if name in domains.usable:
            return domains.usable[name]
        if name in domains.refused:
            raise CseError(domains.refused[name])
        known = [*domains.usable, *domains.refused]
        raise CseError(f"{self.folder}: no domain {short(name)}{nearest(str(name), known)}; {_listed(domains)}")

    def _look(self, place: Path) -> None:
        """Read the files that are new or changed. Called under the lock."""
        before = time.time_ns()
        stamp = place.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        seen: dict[str, _Seen] = {}
        lost = False
        with os.scandir(place) as entries:
            files = [entry for entry in entries if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")]
        for entry in sorted(files, key=lambda entry: entry.name):
            name = entry.name.removesuffix(SUFFIX)
            try:
                status = Path(entry.path).stat()
                mark = (status.st_mtime_ns, status.st_ino, status.st_size)
                old = self._seen.get(name)
                seen[name] = old if old is not None and old.stamp == mark else _Seen(mark, self._read(place, name))
            except FileNotFoundError:  # removed meanwhile
                continue
            except OSError as error:  # this file's trouble alone, which may pass without a new stamp of the folder
                lost = True
                seen[name] = _Seen((0, 0, 0), f"{entry.path}: cannot be read ({error_line(error)}); {_ADD}")
        self._seen = seen
        usable = {name: one.found for name, one in seen.items() if isinstance(one.found, Domain)}
        refused = {name: one.found for name, one in seen.items() if isinstance(one.found, str)}
        self._now = Domains(MappingProxyType(usable), MappingProxyType(refused))
        self._stamp = stamp if before - stamp > _COARSE_NS and not lost else -1

    def _read(self, place: Path, name: str) -> Domain | str:
        try:
            return read_domain(place / f"{name}{SUFFIX}", self.manifest.shape)
        except CseError as error:
            return str(error)


def read_bank_manifest(folder: Path) -> BankManifest:
    """Read ``bank.json``.

    Raises:
        CseError: it is missing, broken, modified, of another format or implausible.
    """
    path = folder / BANK
    try:
        tree = read_object(path, _AGAIN)
    except (FileNotFoundError, NotADirectoryError):
        if (folder / MANIFEST).is_file():
            raise CseError(f"{folder}: a bundle of one model, not a bank; `cse bank create` makes one") from None
        raise CseError(f"{folder}: no bank here ({BANK} is missing); `cse bank create` makes one") from None
    if type(tree.get("format")) is not int or tree["format"] != FORMAT:
        raise CseError(
            f"{path}: format {short(tree.get('format'))}, this version reads {FORMAT}; {_AGAIN} or install the version "
            "of cse that wrote it"
        )
    check_seal(tree, path, _AGAIN)
    manifest = fields_of(BankManifest, tree, path, _AGAIN)
    limits = {"max_length": (SHORTEST, LONGEST), "positions": (manifest.max_length, 2**31), "pad_id": (0, 2**31)}
    limits |= dict.fromkeys(("dimension", "layers", "heads", "head_size"), (1, WIDEST))
    check_limits({key: getattr(manifest, key) for key in limits}, limits, path, _AGAIN)
    check_entries(manifest.files, path, (MODEL, TOKENIZER), _AGAIN)
    return manifest


def is_bank(folder: Path | str) -> bool:
    """Return whether a folder claims to be a bank."""
    return (Path(folder) / BANK).is_file()


def domain_of(model: str) -> tuple[Path, str] | None:
    """Return the bank and the domain's name if ``model`` is ``BANK:NAME``, else None."""
    bank, colon, name = model.rpartition(":")
    return (Path(bank), name) if colon and is_bank(bank) else None


def _bare(manifest: BankManifest) -> Domain:
    shape = manifest.shape
    facts = DomainFacts(FORMAT, "", shape.backbone, manifest.pooler, True, 0, manifest.max_length, {})
    return Domain(facts, np.zeros((2 * shape.layers, shape.heads, 0, shape.head_size), np.float32))


def _listed(domains: Domains) -> str:
    names = list(domains.usable)
    if not names:
        return "the bank has no domain yet; `cse bank add` adds one"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it has {', '.join(names[:_SHOWN])}{more}"
