"""The model in service, and the ids by which requests name it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cse.errors import CseError, nearest
from cse.runtime.bank import Bank, Domains
from cse.runtime.domain import AUTO, Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.sketch import SKETCH, Moments, read_sketch
from cse.runtime.uses import QUERY, role_for
from deploy.server.errors import ServiceError
from deploy.server.logs import log
from deploy.server.storage import unreachable

_SAYING = threading.Lock()


class Target(NamedTuple):
    """What a request's ``model`` stands for.

    Attributes:
        served: the model.
        id: as in ``/v1/models``.
        domain: of a bank; None for a bundle, and for ``auto``.
        auto: whether each text goes to the nearest domain of the bank.
        role: that the id names, as in ``NAME:query``; None: the id names none.
    """

    served: Served
    id: str
    domain: Domain | None
    auto: bool
    role: str | None = None

    @property
    def texts(self) -> dict[str, str]:
        """Task texts by role."""
        return self.served.encoder.texts if self.domain is None else self.domain.texts

    @property
    def name(self) -> str:
        """The id without a role."""
        return self.id if self.auto else self.served.name if self.domain is None else self.domain.name

    @property
    def names_role(self) -> bool:
        """Whether the id says in which role texts are read."""
        return self.id != self.name

    @property
    def has_sides(self) -> bool:
        """Whether queries and documents are encoded differently behind their task texts."""
        return self.served.encoder.query_side is not None or (self.domain is not None and bool(self.domain.texts))

    def side_of(self, role: str | None) -> Domain | None:
        """Return the prompts for texts in a role; None for a bundle of one side, and for ``auto``."""
        encoder = self.served.encoder
        if self.domain is None or encoder.bare is None:
            return encoder.side_of(role)
        return self.domain.in_role(role, encoder.bare)

    @property
    def dimension(self) -> int:
        """Numbers of a vector; of ``auto``, the most that a domain may give."""
        return self.served.encoder.dimension if self.domain is None else self.domain.dimension

    @property
    def max_length(self) -> int:
        """Maximum tokens per text, special tokens included."""
        side = self.side_of(self.role)
        return self.served.encoder.max_length if side is None else side.max_length


@dataclass(frozen=True, eq=False)
class Served:
    """A model that is loaded.

    Attributes:
        encoder: runs it.
        name: id of a bundle.
        version: in the registry, else the start of the hash of its files.
        reference: sketch of a bundle's vectors of its training text, if it was exported with one.
    """

    encoder: OnnxEncoder
    name: str
    version: str
    reference: Moments | None = None
    loaded: float = field(default_factory=time.time)
    _said: dict[str, str] = field(default_factory=dict)  # what was wrong with a bank at the last look

    @classmethod
    def load(cls, folder: Path, name: str, version: str | None, *, provider: str, threads: int | None) -> Served:
        """Load a bundle or bank and answer one text, so that the first request does not wait.

        Raises:
            CseError: it is damaged or does not load.
        """
        encoder = OnnxEncoder(folder, provider=provider, threads=threads)
        tokens = encoder.tokenize(["warm up"])
        rows, bare = [tokens.row(0)], [] if encoder.bank is None else [encoder.bank.bare]
        for one_core in {False, encoder.threads > 1}:
            encoder.embed_rows(rows, bare, one_core=one_core)
        files = encoder.manifest.files
        reference = read_sketch(folder / SKETCH, encoder.dimension) if SKETCH in files else None
        return cls(encoder, name, version or files["model.onnx"]["sha256"][:12], reference)

    @property
    def sha256(self) -> str:
        """SHA-256 of the ONNX graph."""
        return str(self.encoder.manifest.files["model.onnx"]["sha256"])

    def ids(self) -> list[str]:
        """Return the ids by which requests may name it: the bundle's name, or the domains of the bank.

        A model that declares queries has two more, ``NAME:query`` and ``NAME:passage``, for clients that cannot name a
        role.
        """
        bank = self.encoder.bank
        if bank is None:
            return [self.name, *_with_roles(self.name, self.encoder.texts)]
        usable = self.domains(bank).usable
        some = any(domain.centres is not None for domain in usable.values())
        named = [each for name, domain in usable.items() for each in (name, *_with_roles(name, domain.texts))]
        return [*named, *([AUTO] if some else [])]

    def domains(self, bank: Bank) -> Domains:
        """Return the domains of the bank, and log what is wrong with its folder or a file when it begins.

        Raises:
            ServiceError: 503, the folder cannot be read now.
        """
        try:
            found = bank.domains()
        except CseError as error:
            self._say({"": str(error)})  # no file has this name
            raise unreachable("cannot be read now; the log says why") from None
        self._say(found.refused)
        return found

    def _say(self, troubles: Mapping[str, str]) -> None:
        with _SAYING:
            for name, trouble in troubles.items():
                if self._said.get(name) != trouble:
                    log.error(trouble)
            if "" not in troubles:  # else the files cannot be seen now
                self._said.clear()
            self._said.update(troubles)

    def target(self, model: str | None) -> Target:
        """Return what an id stands for.

        Args:
            model: the id; None where the route does not ask for one: the only model.

        Raises:
            ServiceError: 404, there is no such model; 400, one of several must be named; 503, its file is damaged, or
                the bank's folder cannot be read.
        """
        bank = self.encoder.bank
        if bank is None:
            if model is None or model == self.name:
                return Target(self, self.name, None, auto=False)
            roles = _with_roles(self.name, self.encoder.texts)
            if model in roles:
                return Target(self, model, None, False, roles[model])
            raise _unknown(model, self.ids())
        domains = self.domains(bank)
        if model is None:
            if len(domains.usable) == 1:
                model = next(iter(domains.usable))
            else:
                raise ServiceError(
                    400, f"model: name one of {_listed(self.ids())}", param="model", code="model_missing"
                )
        if model == AUTO and AUTO in self.ids():
            return Target(self, AUTO, None, auto=True)
        if model in domains.usable:
            return Target(self, model, domains.usable[model], auto=False)
        name = model.rpartition(":")[0]
        if name in domains.usable and model in (roles := _with_roles(name, domains.usable[name].texts)):
            return Target(self, model, domains.usable[name], False, roles[model])
        if model in domains.refused:
            message = f"model {model!r}: its file in the bank is damaged; the log says how"
            raise ServiceError(503, message, param="model", code="model_damaged")
        raise _unknown(model, self.ids())

    def card(self, name: str) -> dict[str, Any]:
        """Return the entry of ``/v1/models``."""
        manifest, target = self.encoder.manifest, self.target(name)
        normalize = getattr(manifest, "normalize", True) if target.domain is None else target.domain.facts.normalize
        return {
            "id": name,
            "object": "model",
            "created": int(self.loaded),
            "owned_by": "cse",
            "dimension": target.dimension,
            "max_length": target.max_length,
            "normalize": normalize,
        }


def _with_roles(name: str, texts: Mapping[str, str]) -> dict[str, str | None]:
    """Return the role of each id that names one: of a query, and of a document as the model calls it."""
    if QUERY not in texts:
        return {}
    return {f"{name}:{QUERY}": QUERY, f"{name}:passage": role_for("document", texts)}


def folder_name(folder: Path) -> str:
    """Return the id of a bundle that was given as a folder: the folder's name.

    Raises:
        CseError: no such folder.
    """
    if not folder.is_dir():
        raise CseError(f"{folder}: no such folder; give a bundle (cse export), a bank (cse bank create) or NAME@STAGE")
    return folder.resolve().name


def _unknown(model: str, known: list[str]) -> ServiceError:
    message = f"model {model[:80]!r} does not exist{nearest(model, known)}; there is {_listed(known)}"
    return ServiceError(404, message, param="model", code="model_not_found")


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "none yet") + more
