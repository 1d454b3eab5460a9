"""Documents turned into rows of the table: passages, words, vectors; here or in a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from cse.runtime.encode import Prepared
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.corpus import OWN, Columns, Document
from cse.search.model import CorpusModel, hold_domains
from cse.search.passages import split
from cse.search.table import DOCUMENT, EMBEDDING, KEY, PASSAGE, WORDS
from cse.search.words import tokens

Kind = Literal["auto", "exact", "approximate"]
Pieces = Iterator[list[Document]]  # documents that are embedded together

PIECE = 1024  # documents of a piece


@dataclass(frozen=True)
class Choices:
    """How to index.

    Attributes:
        workers: processes of Ray; 0: none.
        threads: of the encoder in this process; None: one per core.
        changes: whether the corpus is a part, and documents that it does not have stay.
        kind: ``exact`` compares every vector; ``approximate`` reads the nearest partitions of an IVF index, whose
            vectors are quantised by RaBitQ (Gao and Long 2024, arXiv 2405.12497), and computes the exact cosine of the
            best; ``auto`` does so above 20,000 rows.
        kept: vectors of a bare backbone that are there already; for this process.
    """

    columns: Columns = field(default_factory=Columns)
    role: str | None = None
    workers: int = 0
    provider: str = "auto"
    threads: int | None = None
    changes: bool = False
    again: bool = False
    kind: Kind = "auto"
    kept: KeptVectors | None = None


class Made(NamedTuple):
    """Rows, and how many of their documents are cut."""

    rows: pa.Table
    cut: int


class Ready(NamedTuple):
    """Columns of rows whose vectors are missing, their tokens, and how many documents are cut."""

    columns: dict[str, list[Any]]
    prepared: Prepared
    cut: int


class Maker:
    """Turns documents into rows of a table."""

    def __init__(self, model: CorpusModel, choices: Choices, schema: pa.Schema) -> None:
        self.model, self.choices, self.schema = model, choices, schema
        self.encoder = OnnxEncoder(model.folder, provider=choices.provider, threads=choices.threads, kept=choices.kept)
        hold_domains(self.encoder.bank, model.domains)

    def prepare(self, documents: Sequence[Document]) -> Ready:
        """Split long documents, and find tokens and words; another thread may embed meanwhile."""
        limit, cut, domains = self.model.limit, 0, list[str | None]()
        kept = [name for name in self.schema.names if name not in OWN]
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        texts, sections = [one.text for one in documents], [one.sections for one in documents]
        for one, found in zip(documents, split(texts, sections, limit, self.encoder.token_counts), strict=True):
            parts, count, others = found.passages, len(found.passages), [None] * (len(found.passages) - 1)
            cut += found.cut
            columns["text"] += parts
            columns[PASSAGE] += range(count)
            columns[DOCUMENT] += [one.text if count > 1 else None, *others]
            columns[WORDS] += [" ".join(tokens(one.text)), *others]
            for name, value in (("id", one.id), (KEY, one.key), *zip(kept, one.kept, strict=True)):
                columns[name] += [value] * count
            domains += [one.domain] * count
        domain: Any = domains if domains and domains[0] is not None else self.model.domain
        return Ready(columns, self.encoder.prepare(columns["text"], domain=domain, role=self.choices.role), cut)

    def embed(self, ready: Ready) -> Made:
        """Add the vectors, of unit length."""
        vectors = self.encoder.encode_prepared(ready.prepared, normalize=True).embeddings
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), vectors.shape[1])
        return Made(pa.table({**ready.columns, EMBEDDING: lists}, self.schema), ready.cut)
