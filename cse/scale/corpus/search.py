"""Open the model that encodes the queries of an index, and measure a search by judged queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cse.data.checks import listed
from cse.data.tasks.beir import IDS, document_ids, read_beir
from cse.errors import CseError
from cse.evaluation.retrieval import MAP, MEASURES, score_ranks
from cse.runtime.bank import is_bank
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY
from cse.scale.corpus.model import file_facts, find_model, hold_domains, model_facts
from cse.scale.corpus.table import MODES, Mode, SearchTable

FOUND = tuple(name for name in MEASURES if name != MAP)  # MAP sees the whole ranking, a search its first 100
_DEPTH, _MISSED = 100, 1 << 30


def open_encoder(table: SearchTable, model: str | None = None, provider: str = "auto") -> OnnxEncoder:
    """Open the model that made the vectors of an index.

    Args:
        model: bundle, bank (of vectors of one domain) or ``BANK:NAME``; None: its path when the vectors were made.
    """
    name = _with_domain(model or table.bundle, table)
    found = find_model(name)
    facts = file_facts(found) if "domains" in table.model else model_facts(found)
    if not _made(table.model, facts):
        raise CseError(f"{name}: not the model that made {table.url}; name that one with --model or embed again")
    encoder = OnnxEncoder(found.folder, provider=provider)
    hold_domains(encoder.bank, found.identities())
    # vectors of several domains are as wide as the bank's
    return encoder.of(found.domain, wide="domains" in table.model and table.model["domain"] is None)


def role_of_queries(table: SearchTable, encoder: OnnxEncoder) -> str | None:
    """Return the role of queries: ``query`` with a query side, or where the rows have a role and the model has it."""
    asked = encoder.query_side is not None or (table.role is not None and QUERY in encoder.texts)
    return QUERY if asked else None


def changed_queries(table: SearchTable, encoder: OnnxEncoder) -> str:
    """Return a line if the query side is another than when the index was embedded; empty if not, or not known."""
    now = "" if encoder.query_side is None else encoder.query_side.source
    if table.queries in (None, now):
        return ""
    return f"the query side is another than when {table.url} was embedded; its vectors stay valid"


def _with_domain(model: str, table: SearchTable) -> str:
    """Return a model's name; for a bank alone, with the domain that made the vectors."""
    if "domains" not in table.model or not is_bank(model):
        return model
    domain = table.model["domain"]
    if domain is None:
        raise CseError(
            f"{table.url}: each row has the prompts of its own domain; say whose encode the query: "
            f"--model {model}:NAME, where NAME is one of {listed(table.model['domains'])}"
        )
    return f"{model}:{domain}"


def _made(made: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Return whether the model of some vectors is the one with these facts, or has its domains among others."""
    if made.get("domains") and made["domain"] is None and "domains" in facts:
        same = facts["domains"].items() <= made["domains"].items()
        return same and facts | {"domain": None, "domains": made["domains"]} == made
    return facts == made


def measure_search(
    table: SearchTable, encoder: OnnxEncoder, role: str | None, folder: str
) -> dict[Mode, dict[str, float]]:
    """Return ``FOUND`` times 100 for each way to search, from the first 100 rows of each query.

    Args:
        table: an index of the task's documents, with their ids.
    """
    task = read_beir(Path(folder), Path(folder).name)
    ids, _ = document_ids(Path(folder))
    place = {name: number for number, name in enumerate(ids)}
    documents = len(task.documents)
    if table.id_column not in IDS or len(table) != documents:
        raise CseError(
            f"{table.url}: {len(table):,} rows, not the {documents:,} documents of {folder}; embed its corpus.jsonl "
            "with --id-column _id"
        )
    vectors = encoder.encode(task.queries, normalize=True, role=role)
    grade = np.maximum(task.relevance, 0)
    scores: dict[Mode, dict[str, float]] = {}
    for mode in MODES if table.has_text else ("vectors",):
        values = []
        for query, hits in enumerate(table.search(task.queries, vectors, _DEPTH + 1, mode)):
            judged = np.flatnonzero((task.query == query) & (grade > 0))
            relevant = task.document[judged]
            own = -1 if task.own is None else task.own[query]
            ranked = [place.get(str(hit.id), _MISSED) for hit in hits]
            ranked = [document for document in ranked if document != own or own in relevant][:_DEPTH]
            rank = {document: number for number, document in enumerate(ranked, start=1)}
            ranks = np.array([rank.get(document, _MISSED) for document in relevant.tolist()])
            values.append(score_ranks(ranks, grade[judged]))
        scores[mode] = {name: 100 * float(np.mean([value[name] for value in values])) for name in FOUND}
    return scores
