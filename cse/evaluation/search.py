"""Measure a search of an index by judged queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cse.data.tasks.beir import IDS, document_ids, read_beir
from cse.errors import CseError
from cse.evaluation.retrieval import MAP, MEASURES, score_ranks
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.table import MODES, Mode, SearchTable

FOUND = tuple(name for name in MEASURES if name != MAP)  # MAP sees the whole ranking, a search its first 100
_DEPTH, _MISSED = 100, 1 << 30


def measure_search(
    table: SearchTable, encoder: OnnxEncoder, role: str | None, folder: str
) -> dict[Mode, dict[str, float]]:
    """Return ``FOUND`` times 100 for each way to search, from the first 100 documents of each query.

    Args:
        table: an index of the task's documents, with their ids.
    """
    task = read_beir(Path(folder), Path(folder).name)
    ids, _ = document_ids(Path(folder))
    place = {name: number for number, name in enumerate(ids)}
    documents = len(task.documents)
    if table.facts["id_column"] not in IDS or len(table) != documents:
        raise CseError(
            f"{table.url}: {len(table):,} documents, not the {documents:,} of {folder}; index that folder with its ids"
        )
    vectors = encoder.encode(task.queries, normalize=True, role=role)
    grade = np.maximum(task.relevance, 0)
    scores: dict[Mode, dict[str, float]] = {}
    for mode in MODES:
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
