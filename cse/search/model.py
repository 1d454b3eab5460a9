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
from cse.runtime.bank import Bank, meaning_of
from cse.runtime.domain import AUTO, Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY, text_of

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class CorpusModel:
    """A bundle or a bank before its graph is opened, as plain values, which a worker gets too.

    Attributes:
        domain: of all rows, or ``auto``; None where each row names its own.
        domains: identity of each domain that can be used, by name.
        files: what identifies the model by its files and its domains.
        facts: ``files``, or the identity of the document side where that is the bare backbone: an index stays valid
            when the query side changes, or comes or goes.
        name: what opens the model again; a bank alone where its domain says nothing of its queries.
        task_text: what stands before each row.
        limit: tokens that the model reads; of several domains, the shortest limit.
        dimension: numbers of a vector: of one domain its own; of several, all that the bank has.
    """

    folder: str
    domain: str | None
    domains: dict[str, str]
    files: dict[str, Any]
    facts: dict[str, Any]
    name: str
    task_text: str
    limit: int
    dimension: int


def find_model(model: str, domain_column: str | None = None, role: str | None = None) -> CorpusModel:
    """Find a model and, in a bank, the domains that can be used.

    Args:
        model: bundle folder, or ``BANK:NAME``, where NAME may be ``auto``; with a domain column, a bank.
        domain_column: column that names each row's domain, if there is one.
        role: of the rows, whose task text goes before them.
    """
    found = meaning_of(model)
    folder, name = found.folder, found.domain
    if not folder.exists():
        hint = nearest(model, map(str, folder.parent.glob("*/"))) or "; `cse export` writes one"
        raise CseError(f"{model}: no such folder (--model){hint}")
    bank = Bank(folder, whole=False)
    if bank.only is not None and domain_column is not None:
        raise CseError(
            f"--domain-column {domain_column}: {model} is a bundle of one model; rows can choose among the domains "
            "of a bank (`cse bank create`)"
        )
    if name is not None and domain_column is not None:
        raise CseError(
            f"--domain-column {domain_column}: {model} is one domain for all rows; give --model {folder} instead"
        )
    if found.whole_bank and domain_column is None:
        example = next(iter(bank.names()), "NAME")
        raise CseError(
            f"{folder}: a bank; name one of its domains, for instance {folder}:{example}, or let each row name its own "
            "(--domain-column)"
        )
    if name == AUTO:
        # raises if there is no domain to choose from
        bank.nearest(np.empty((0, bank.manifest.shape.dimension), np.float32))
    if name is None and bank.only is not None:
        name = bank.only.name
    usable: Mapping[str, Domain]
    usable = bank.domains().usable if name in (None, AUTO) else {str(name): bank.domain(str(name))}
    one = usable.get(name or "")
    queried = one is not None and one.for_queries
    manifest = bank.manifest
    identities = {key: _identity(domain, bank) for key, domain in usable.items()}
    files: dict[str, Any] = {
        "files": dict(sorted(manifest.files.items())),
        "max_length": bank.bare.max_length,
        "pad_id": manifest.pad_id,
        "domain": name,
        "domains": identities,
    }
    documents = manifest.documents if queried or one is bank.bare else ""
    path = os.path.abspath(folder)  # noqa: PTH100 - links stay as they are, and workers may have another folder
    own = [domain.max_length for domain in usable.values() if not domain.for_queries]
    return CorpusModel(
        folder=path,
        domain=name,
        domains=identities,
        files=files,
        facts={"documents": documents} if documents else files,
        name=f"{path}:{name}" if queried and found.domain is not None else path,
        task_text=_task_text(folder, role, [*usable.values()]),
        limit=min(own) if own and len(own) == len(usable) else min([bank.bare.max_length, *own]),
        dimension=manifest.shape.dimension if one is None else one.dimension,
    )


def _task_text(folder: Path, role: str | None, domains: list[Domain]) -> str:
    """Return the task text of the role of rows; empty without a role."""
    if role == QUERY and any(domain.for_queries for domain in domains):
        raise CseError(
            f"--role {QUERY}: {folder} has a query side, which is for searching; an index holds what the bare "
            "backbone makes, so index without --role, or with --role passage"
        )
    texts = {text_of(role, domain.texts) for domain in domains}
    if len(texts) > 1:
        raise CseError(f"--role {role}: its task text differs between the domains of {folder}; index with one of them")
    return texts.pop() if texts else ""


def hold_domains(bank: Bank, identities: Mapping[str, str]) -> None:
    """Keep these domains of a bank as they are, and no others, after checking that they are still the same."""
    for name, domain in bank.hold(identities).usable.items():
        if _identity(domain, bank) != identities[name]:
            raise CseError(
                f"{bank.folder}: domain {name} was replaced since this run began; run the command again "
                "(`cse index` with --again)"
            )


def _identity(domain: Domain, bank: Bank) -> str:
    """Return what makes the vectors of a domain's rows: of a query side, those of all domains alike."""
    return bank.manifest.documents if domain.for_queries else domain.identity()


def difference(old: Facts, new: Facts) -> str:
    """Return in a few words what changed since an index was made; empty if nothing did."""
    changed = next((key for key, now in new.items() if old.get(key) != now), None)
    if changed != "model":
        return f"{changed} was {old.get(changed)!r}, now {new[changed]!r}" if changed else ""
    was, now = ({**facts["model"]} for facts in (old, new))
    before, after = was.pop("domains", {}), now.pop("domains", {})
    for name in {**after, **before} if was == now else ():
        if before.get(name) != after.get(name):
            how = "is new" if name not in before else "is gone" if name not in after else "has changed"
            return f"the model is different (domain {name} {how})"
    return "the model is different"


# ---- queries --------------------------------------------------------------------------------------------------------


def open_encoder(url: str, facts: Facts, model: str | None = None, provider: str = "auto") -> OnnxEncoder:
    """Open the model that made the vectors of an index.

    Args:
        model: bundle, bank (of vectors of one domain) or ``BANK:NAME``; None: its path when the vectors were made.
    """
    made, name = facts["model"], model or facts["bundle"]
    several = made.get("domain", "") is None  # each row has its own
    if "domains" in made and meaning_of(name).whole_bank:
        if several:
            raise CseError(
                f"{url}: each row has the prompts of its own domain; say whose encode the query: --model {name}:NAME, "
                f"where NAME is one of {listed(made['domains'])}"
            )
        name = f"{name}:{made['domain']}"
    found = find_model(name)
    same = found.facts if "documents" in made else found.files
    if several and found.domains and found.domains.items() <= made["domains"].items():
        same = {**same, "domain": None, "domains": made["domains"]}
    if same != made:
        raise CseError(f"{name}: not the model that made {url}; name that one with --model or index again")
    encoder = OnnxEncoder(found.folder, provider=provider)
    hold_domains(encoder.bank, found.domains)
    return encoder.of(found.domain, wide=several)  # vectors of several domains are as wide as the bank's


def role_of_queries(facts: Facts, encoder: OnnxEncoder) -> str | None:
    """Return the role of queries: ``query`` with a query side, or where the rows have a role and the model has it."""
    asked = encoder.query_side is not None or (facts["role"] is not None and QUERY in encoder.texts)
    return QUERY if asked else None
