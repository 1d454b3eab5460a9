"""What makes an index's vectors, a bundle, one domain of a bank or the domains that rows name, and its queries'."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cse.data.checks import listed
from cse.errors import CseError, nearest
from cse.runtime.bank import Bank, Domains, domain_of, is_bank
from cse.runtime.domain import AUTO, Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, text_of

_NONE = Domains({}, {})


@dataclass(frozen=True)
class CorpusModel:
    """A bundle or a bank, before its graph is opened.

    Attributes:
        domain: domain of all rows, or ``auto``; None for a bundle, which has one, and where each row names its own.
        domains: the domains that can be used; none are named of a bundle.
    """

    folder: str
    bank: Bank
    domain: str | None = None
    domains: Domains = _NONE

    def identities(self) -> dict[str, str]:
        """Return the identity of each domain that can be used, by name."""
        return {name: _identity(domain, self.bank) for name, domain in self.domains.usable.items()}

    @property
    def one(self) -> Domain | None:
        """The domain of all rows, if there is one."""
        return self.bank.only if self.domain is None else self.domains.usable.get(self.domain)

    @property
    def query_side(self) -> Domain | None:
        """What encodes queries and no row, if the model has a query side."""
        return self.one if self.one is not None and self.one.for_queries else None

    @property
    def queries(self) -> str | None:
        """Identity of the query side, empty without one; None where rows have several domains."""
        if self.one is None:
            return None
        return "" if self.query_side is None else self.query_side.source

    @property
    def documents(self) -> str:
        """Identity of the document side where it is the bare backbone; else empty."""
        known = self.domains is _NONE or self.query_side is not None
        return self.bank.manifest.documents if known else ""

    @property
    def name(self) -> str:
        """What opens the model again; a bank alone where its domain says nothing of its queries."""
        path = os.path.abspath(self.folder)  # noqa: PTH100 - links stay as they are
        return path if self.domain is None or self.query_side is None else f"{path}:{self.domain}"

    @property
    def dimension(self) -> int:
        """Numbers of a vector: of one domain its own; of several, all that the bank has."""
        return self.bank.manifest.dimension if self.one is None else self.one.dimension

    @property
    def limit(self) -> int:
        """Tokens that the model reads; of several domains, the shortest limit."""
        own = [domain.max_length for domain in self.domains.usable.values() if not domain.for_queries]
        shared = [self.bank.manifest.max_length] if len(own) < len(self.domains.usable) or not own else []
        return min([*own, *shared])

    def task_text(self, role: str | None) -> str:
        """Return the task text of the role of rows; empty without a role."""
        domains = [*self.domains.usable.values()] or [*filter(None, [self.bank.only])]
        if role == QUERY and any(domain.for_queries for domain in domains):
            raise CseError(
                f"--role {QUERY}: {self.folder} has a query side, which is for searching; an index holds what the bare "
                "backbone makes, so index without --role, or with --role passage"
            )
        texts = {text_of(role, domain.texts) for domain in domains}
        if len(texts) > 1:
            raise CseError(
                f"--role {role}: its task text differs between the domains of {self.folder}; index with one of them"
            )
        return texts.pop() if texts else ""

    def check_domain(self, name: str) -> None:
        """Raise ``CseError`` for the name of a domain that cannot be used, with the nearest name."""
        self.bank.choose(name, 1)


def find_model(model: str, domain_column: str | None = None) -> CorpusModel:
    """Find a model and, in a bank, the domains that can be used.

    Args:
        model: bundle folder, or ``BANK:NAME``, where NAME may be ``auto``; with a domain column, a bank.
        domain_column: column that names each row's domain, if there is one.
    """
    folder, name = domain_of(model) or (Path(model), None)
    if not folder.exists():
        hint = nearest(model, map(str, folder.parent.glob("*/"))) or "; `cse export` writes one"
        raise CseError(f"{model}: no such folder (--model){hint}")
    bank = Bank(folder, whole=False)
    if bank.only is not None and name is None:
        if domain_column is not None:
            raise CseError(
                f"--domain-column {domain_column}: {model} is a bundle of one model; rows can choose among the domains "
                "of a bank (`cse bank create`)"
            )
        return CorpusModel(model, bank)
    if name is not None and domain_column is not None:
        raise CseError(
            f"--domain-column {domain_column}: {model} is one domain for all rows; give --model {folder} instead"
        )
    if name is None and domain_column is None:
        example = next(iter(bank.names()), "NAME")
        raise CseError(
            f"{folder}: a bank; name one of its domains, for instance {folder}:{example}, or let each row name its own "
            "(--domain-column)"
        )
    if name == AUTO:
        # raises if there is no domain to choose from
        bank.nearest(np.empty((0, bank.manifest.dimension), np.float32))
    domains = bank.domains() if name in (None, AUTO) else Domains({name: bank.domain(name)}, {})
    return CorpusModel(str(folder), bank, name, domains)


def model_facts(model: CorpusModel) -> dict[str, Any]:
    """Return the facts that identify a model; those of a bundle do not mention domains.

    Of a bare backbone, and of any query side on it, they are those of the document side: an index of one stays valid
    when the query side changes, or comes or goes.
    """
    return {"documents": model.documents} if model.documents else file_facts(model)


def file_facts(model: CorpusModel) -> dict[str, Any]:
    """Return the facts that identify a model by its files and, of a bank, its domains."""
    manifest = model.bank.manifest
    files = dict(sorted(manifest.files.items()))
    facts: dict[str, Any] = {"files": files, "max_length": manifest.max_length, "pad_id": manifest.pad_id}
    return facts | ({} if model.domains is _NONE else {"domain": model.domain, "domains": model.identities()})


def hold_domains(bank: Bank, identities: Mapping[str, str]) -> None:
    """Keep these domains of a bank as they are, and no others, after checking that they are still the same.

    A bundle's only domain is kept anyway.
    """
    for name, domain in bank.hold(identities).usable.items():
        if _identity(domain, bank) != identities[name]:
            raise CseError(
                f"{bank.folder}: domain {name} was replaced since this run began; run the command again "
                "(`cse index` with --again)"
            )


def _identity(domain: Domain, bank: Bank) -> str:
    """Return what makes the vectors of a domain's rows: of a query side, those of all domains alike."""
    return bank.manifest.documents if domain.for_queries else domain.identity()


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return in a few words what changed since an index was made; empty if nothing did."""
    for key, now in new.items():
        before = old.get(key)
        if before == now:
            continue
        if key != "model":
            return f"{key} was {before!r}, now {now!r}"
        was, domains = dict(before or {}), dict(now)
        old_domains, new_domains = was.pop("domains", {}), domains.pop("domains", {})
        changed = [name for name in {**new_domains, **old_domains} if old_domains.get(name) != new_domains.get(name)]
        if not changed or was != domains:
            return "the model is different"
        name = changed[0]
        how = "is new" if name not in old_domains else "is gone" if name not in new_domains else "has changed"
        return f"the model is different (domain {name} {how})"
    return ""


# ---- queries --------------------------------------------------------------------------------------------------------


def open_encoder(url: str, facts: Mapping[str, Any], model: str | None = None, provider: str = "auto") -> OnnxEncoder:
    """Open the model that made the vectors of an index.

    Args:
        url: the index.
        facts: what it says of itself.
        model: bundle, bank (of vectors of one domain) or ``BANK:NAME``; None: its path when the vectors were made.
    """
    made, name = facts["model"], model or facts["bundle"]
    if "domains" in made and is_bank(name):
        if made["domain"] is None:
            raise CseError(
                f"{url}: each row has the prompts of its own domain; say whose encode the query: --model {name}:NAME, "
                f"where NAME is one of {listed(made['domains'])}"
            )
        name = f"{name}:{made['domain']}"
    found = find_model(name)
    if not _made(made, file_facts(found) if "domains" in made else model_facts(found)):
        raise CseError(f"{name}: not the model that made {url}; name that one with --model or index again")
    encoder = OnnxEncoder(found.folder, provider=provider)
    hold_domains(encoder.bank, found.identities())
    # vectors of several domains are as wide as the bank's
    return encoder.of(found.domain, wide="domains" in made and made["domain"] is None)


def role_of_queries(facts: Mapping[str, Any], encoder: OnnxEncoder) -> str | None:
    """Return the role of queries: ``query`` with a query side, or where the rows have a role and the model has it."""
    asked = encoder.query_side is not None or (facts["role"] is not None and QUERY in encoder.texts)
    return QUERY if asked else None


def changed_queries(url: str, facts: Mapping[str, Any], encoder: OnnxEncoder) -> str:
    """Return a line if the query side is another than when the index was made; empty if not, or not known."""
    now = "" if encoder.query_side is None else encoder.query_side.source
    if facts["queries"] in (None, now):
        return ""
    return f"the query side is another than when {url} was made; its vectors stay valid"


def _made(made: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Return whether the model of some vectors is the one with these facts, or has its domains among others."""
    if made.get("domains") and made["domain"] is None and "domains" in facts:
        same = facts["domains"].items() <= made["domains"].items()
        return same and facts | {"domain": None, "domains": made["domains"]} == made
    return facts == made
