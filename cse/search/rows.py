"""Documents turned into rows of the table: passages, words, vectors; here or in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cse.runtime.encode import Prepared
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.model import hold_domains
from cse.search.passages import LONG, passages
from cse.search.table import DOCUMENT, EMBEDDING, PASSAGE, WORDS
from cse.search.words import tokens

PIECE = 1024  # documents that are embedded together
CUT, DOMAIN, SECTIONS = "_cut", "_domain", "_sections"  # columns on the way


@dataclass(frozen=True)
class Recipe:
    """What a process needs to turn documents into rows.

    Attributes:
        domain: of all documents; None for a bundle, and where each names its own.
        domains: identity of each domain that can be used, by name; empty for a bundle.
        limit: tokens that the model reads.
        dimension: numbers of a vector.
    """

    bundle: str
    domain: str | None
    domains: dict[str, str]
    role: str | None
    limit: int
    dimension: int
    batch_size: int | None
    provider: str
    threads: int | None
    kept: KeptVectors | None = None


class Ready(NamedTuple):
    """Rows whose vectors are missing, and their tokens."""

    rows: pa.Table
    prepared: Prepared


class Maker:
    """Turns documents, a row each, into rows of the table."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.encoder = OnnxEncoder(recipe.bundle, provider=recipe.provider, threads=recipe.threads, kept=recipe.kept)
        hold_domains(self.encoder.bank, recipe.domains)

    def __call__(self, documents: pa.Table) -> pa.Table:
        """Return the rows of documents."""
        return self.embed(self.prepare(documents))

    def prepare(self, documents: pa.Table) -> Ready:
        """Split long documents, and find tokens and words; another thread may embed meanwhile."""
        texts, limit = documents["text"].to_pylist(), self.recipe.limit
        counts = self._counts(texts)
        parts = [
            passages(text, sections, limit) if count > LONG * limit else [text]
            for text, sections, count in zip(texts, documents[SECTIONS].to_pylist(), counts, strict=True)
        ]
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        first = np.cumsum(sizes) - sizes
        rows = documents.drop_columns(["text", SECTIONS, DOMAIN]).take(np.repeat(np.arange(len(parts)), sizes))
        of_first: dict[str, list[Any]] = {name: [None] * len(rows) for name in (DOCUMENT, WORDS)}
        for row, text, count in zip(first.tolist(), texts, sizes.tolist(), strict=True):
            of_first[WORDS][row] = " ".join(tokens(text))
            of_first[DOCUMENT][row] = text if count > 1 else None
        cut = np.zeros(len(rows), np.int8)
        cut[first] = (np.array(counts) > limit) & (sizes == 1)
        flat = [part for found in parts for part in found]
        numbers = np.arange(len(rows)) - np.repeat(first, sizes)
        for name, values, kind in (
            (PASSAGE, numbers, pa.int32()), ("text", flat, pa.string()), (DOCUMENT, of_first[DOCUMENT], pa.string()),
            (WORDS, of_first[WORDS], pa.string()), (CUT, cut, pa.int8()),
        ):  # fmt: skip
            rows = rows.append_column(name, pa.array(values, kind))
        domain: Any = self.recipe.domain
        if documents[DOMAIN].null_count == 0:
            domain = np.repeat(np.array(documents[DOMAIN].to_pylist(), object), sizes).tolist()
        return Ready(rows, self.encoder.prepare(flat, domain=domain, role=self.recipe.role))

    def embed(self, ready: Ready) -> pa.Table:
        """Add the vectors, of unit length."""
        vectors = self.encoder.encode_prepared(ready.prepared, self.recipe.batch_size, normalize=True).embeddings
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), vectors.shape[1])
        return ready.rows.append_column(EMBEDDING, lists)

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has; of short and of very long ones, about how many."""
        limit = self.recipe.limit
        counts = [len(text) if len(text) <= limit else len(text) // 16 for text in texts]
        unsure = [row for row, text in enumerate(texts) if len(text) > limit and counts[row] <= LONG * limit]
        for row, count in zip(unsure, self.encoder.token_counts([texts[row] for row in unsure]), strict=True):
            counts[row] = count
        return counts
