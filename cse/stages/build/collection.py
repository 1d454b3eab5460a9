"""Build the collection that queries are trained against, from prepared pairs and group ``objective.collection``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from cse.data.store import STAND_INS, PreparedData
from cse.errors import CseError
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.uses import role_for
from cse.settings.objective import CollectionSettings
from cse.training.collection import QueryPairs, Targets, document_vectors, pairs_of, teach, unit_vectors

_FOLDER = "objective.collection.teacher_folder"


@dataclass(frozen=True)
class TaughtCollection:
    """Queries, the documents they are trained against, and what a teacher thinks of these.

    Attributes:
        documents: unit vectors of the documents, the bare backbone's, float32 ``(N, D)``.
        queries: the teacher's unit vectors of the queries ``(n, D')``.
        targets: the teacher's shares.
    """

    pairs: QueryPairs
    documents: NDArray[np.float32]
    queries: NDArray[np.float32]
    targets: Targets


def collection_from(
    encoder: SentenceEncoder, sources: Sequence[PreparedData], settings: CollectionSettings, most: int | None = None
) -> TaughtCollection:
    """Encode the documents, let the teacher score them for each query, and say how many there are.

    Args:
        sources: prepared pairs, the main source first.
        settings: the teacher.
        most: queries, at most, picked at even intervals; None: all. The documents of all rows stay.
    """
    if encoder.documents is None:
        raise CseError("objective.collection: trains queries alone; set prompt.side: query")
    for data in sources:
        if data.view != "pairs":
            raise CseError(
                f"{data.rows_file}: contains {data.view}, but queries are trained on pairs of a query and its "
                "document; run `cse prepare` with data.view: pairs, or documents and data.pairs: [stand_ins]"
            )
    pairs = pairs_of([(data.train, _stand_in(data)) for data in sources], sources[0].documents)
    if len(pairs.documents) < 2:
        raise CseError(f"{sources[0].rows_file}: one document is no collection; prepare two or more")
    if most is not None and len(pairs.queries) > most:
        pairs = pairs.only(np.linspace(0, len(pairs.queries) - 1, most, dtype=np.int64))
    bar = sys.stderr.isatty()
    click.echo(f"{len(pairs.queries):,} queries against {len(pairs.documents):,} documents", err=True)
    bare = encoder.documents
    documents = document_vectors(bare, pairs.documents, bar)
    teacher, taught = bare, documents
    if settings.reads_folder:
        teacher = _teacher(Path(settings.teacher_folder))
        taught = document_vectors(teacher, pairs.documents, bar)
    queries = unit_vectors(teacher, pairs.queries, role_for("query", teacher.texts), bar)
    targets = teach(
        pairs,
        queries,
        taught,
        words=settings.words,
        temperature=settings.teacher_temperature,
        candidates=settings.candidates,
        own_share=settings.own_share,
        most_documents=settings.most_documents,
    )
    return TaughtCollection(pairs, documents, queries, targets)


def _stand_in(data: PreparedData) -> bool:
    """Return whether the queries of a source were taken from its documents."""
    return data.made_from == STAND_INS


def _teacher(folder: Path) -> SentenceEncoder:
    try:
        return SentenceEncoder.load(folder)
    except CseError as error:
        raise CseError(f"{_FOLDER}: {error}") from None
