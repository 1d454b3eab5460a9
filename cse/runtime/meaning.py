"""What the name of a model means: a checkpoint, a bundle, a bank, one of its domains, or a backbone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cse.artifact import Kind
from cse.errors import CseError
from cse.runtime.bank import Bank
from cse.runtime.bundle import is_bundle, read_manifest


@dataclass(frozen=True)
class Meaning:
    """A model by the name that a user gives it.

    Attributes:
        folder: its own; of a domain the bank's; of a hub id a path that need not exist.
        kind: of what lies there; None: nothing that this project trained or exported, so a backbone.
        domain: NAME of ``BANK:NAME``, or ``auto``; None: the name names none.
    """

    name: str
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
    name, folder, domain = str(model), Path(model), None
    before, colon, after = name.rpartition(":")
    if colon and is_bundle(before):
        folder, domain = Path(before), after
    if (folder / Kind.CHECKPOINT.manifest).is_file():
        return Meaning(name, folder, Kind.CHECKPOINT)
    if not is_bundle(folder):
        return Meaning(name, folder, None)
    return Meaning(name, folder, Kind.BUNDLE if read_manifest(folder).only else Kind.BANK, domain)
