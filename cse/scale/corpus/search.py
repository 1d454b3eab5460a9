"""Find the rows nearest to a sentence: scan all shards, or ask an index."""

from __future__ import annotations

import bisect
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cse.data.checks import listed
from cse.errors import CseError
from cse.runtime.bank import is_bank
from cse.runtime.domain import AUTO
from cse.runtime.encode import unit_rows
from cse.runtime.mixed import DomainEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.index import open_index
from cse.scale.corpus.model import find_model, hold_domains, model_facts
from cse.scale.corpus.output import VectorStore
from cse.scale.corpus.shard import read_shard, shard_vectors


@dataclass(frozen=True)
class Hit:
    """A row found: its id, its cosine with the query, and its text if the shards store it."""

    id: int | str
    cosine: float
    text: str | None


def open_encoder(vectors: VectorStore, model: str | None = None, provider: str = "auto") -> OnnxEncoder | DomainEncoder:
    """Open the model that made the vectors.

    Args:
        vectors: the vectors to search.
        model: bundle, bank (of vectors of one domain) or ``BANK:NAME``; None: its path when the vectors were made.
        provider: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        CseError: the model is missing or not the one that made the vectors, or no domain is named where each row has
            its own.
    """
    name = _with_domain(model or vectors.bundle, vectors)
    found = find_model(name)
    if not _made(vectors.model, model_facts(found)):
        raise CseError(
            f"{name}: not the model that made {vectors.folder.url}; name that one with --model or embed again"
        )
    encoder = OnnxEncoder(found.folder, provider=provider)
    if encoder.bank is None or found.domain is None:
        return encoder
    hold_domains(encoder.bank, found.identities())
    return DomainEncoder(encoder, found.domain)


def role_of_queries(vectors: VectorStore, encoder: OnnxEncoder | DomainEncoder) -> str | None:
    """Return the role of queries: ``query``, where the rows were embedded in a role and the model has that one."""
    texts = encoder.texts if isinstance(encoder, OnnxEncoder) else {}
    return "query" if vectors.plan.facts.get("role") is not None and "query" in texts else None


def _with_domain(model: str, vectors: VectorStore) -> str:
    """Return a model's name; for a bank alone, with the domain that made the vectors."""
    if "domains" not in vectors.model or not is_bank(model):
        return model
    domain = vectors.model["domain"]
    if domain is None:
        raise CseError(
            f"{vectors.folder.url}: each row has the prompts of its own domain; say whose encode the query: "
            f"--model {model}:NAME, where NAME is one of {listed(vectors.model['domains'])}"
        )
    return f"{model}:{domain}"


def _made(made: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Return whether the model of some vectors is the one with these facts, or has its domains among others."""
    if made.get("domains") and made["domain"] is None and "domains" in facts:
        same = facts["domains"].items() <= made["domains"].items()
        return same and facts | {"domain": None, "domains": made["domains"]} == made
    return facts == made


def search_vectors(
    vectors: VectorStore, queries: NDArray[np.float32], k: int, *, scan: bool = False
) -> list[list[Hit]]:
    """Return the ``k`` rows with the largest cosine for each query, best first; ties go to the earlier row.

    Args:
        vectors: a finished folder.
        queries: vectors (q, d) of any nonzero length.
        k: fewer are returned if there are fewer rows.
        scan: compare every row even if there is an index, which may be approximate.

    Raises:
        CseError: vectors of another width, an index of other vectors, or unreadable shards.
    """
    if queries.ndim == 2 and vectors.model.get("domains") and vectors.model["domain"] in (None, AUTO):
        # among vectors of several domains a narrower one ends in zeros
        queries = np.pad(queries, ((0, 0), (0, max(0, vectors.dimension - queries.shape[1]))))
    if queries.ndim != 2 or queries.shape[1] != vectors.dimension:
        raise CseError(f"search: queries {queries.shape}, the vectors have {vectors.dimension} dimensions")
    queries = unit_rows(queries.astype(np.float32, copy=False))
    k = min(k, vectors.plan.rows)
    index = None if scan else open_index(vectors)
    cosines, rows = _scan(vectors, queries, k) if index is None else index.search(queries, k)
    return _hits(vectors, cosines, rows)


def _scan(vectors: VectorStore, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return cosines and row numbers (q, k) of the nearest rows; holds one shard and the best so far in memory."""
    from tqdm import tqdm

    best = np.full((len(queries), 0), 0, np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    shards = tqdm(shard_vectors(vectors), total=len(vectors.plan.spans), desc="search", unit="shard", leave=False,
                  disable=not sys.stderr.isatty())  # fmt: skip
    for piece, block in shards:
        numbers = np.broadcast_to(np.arange(piece.first_row, piece.first_row + piece.rows), (len(queries), piece.rows))
        best = np.concatenate([best, queries @ block.T], axis=1)
        rows = np.concatenate([rows, numbers], axis=1)
        order = np.lexsort((rows, -best), axis=1)[:, :k]
        best, rows = np.take_along_axis(best, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return best, rows


def _hits(vectors: VectorStore, cosines: NDArray[np.float32], rows: NDArray[np.int64]) -> list[list[Hit]]:
    pieces = list(vectors.plan.pieces())
    firsts = [piece.first_row for piece in pieces]
    wanted: dict[int, list[int]] = defaultdict(list)
    for row in sorted({int(row) for row in rows.ravel() if row >= 0}):
        wanted[bisect.bisect_right(firsts, row) - 1].append(row)
    found: dict[int, tuple[Any, str | None]] = {}
    for number, members in wanted.items():
        table = read_shard(vectors, pieces[number], ["id", "text"] if vectors.text else ["id"])
        part = table.take([row - firsts[number] for row in members]).to_pylist()
        found |= {row: (value["id"], value.get("text")) for row, value in zip(members, part, strict=True)}
    return [
        [_hit(found[int(row)], cosine) for row, cosine in zip(line, values, strict=True) if row >= 0]
        for line, values in zip(rows, cosines, strict=True)
    ]


def _hit(found: tuple[Any, str | None], cosine: float) -> Hit:
    return Hit(found[0], float(cosine), found[1])
