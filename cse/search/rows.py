"""Documents turned into rows of the table: passages, words, vectors; here or in a worker.

Passages of a long document are its sections, those again in windows of about a hundred words with a quarter of overlap.
A text that is just longer than a model reads loses little where it is cut off, and nearness to one of several passages
is easier to have by chance: only a text that is clearly longer is split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from cse.runtime.encode import Prepared
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.corpus import OWN, Columns, Document
from cse.search.model import CorpusModel, hold_domains
from cse.search.table import DOCUMENT, EMBEDDING, KEY, PASSAGE, WORDS
from cse.search.words import tokens

Kind = Literal["auto", "exact", "approximate"]
Pieces = Iterator[list[Document]]  # documents that are embedded together

PIECE = 1024  # documents of a piece
LONG = 2.5  # times what the model reads; a longer text is split
_WORDS, _OVERLAP = 100, 4  # of a window; every so many words of it stand in the next one too
_PART = 0.7  # of the model's limit in tokens: so many words of most languages fit
# a word; of scripts that write no blanks between words, two characters
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef"
_WORD = re.compile(f"[{_DENSE}]{{1,2}}|[^\\s{_DENSE}]{{1,40}}")


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
        for one, tokens_in in zip(documents, self._counts([one.text for one in documents]), strict=True):
            split = tokens_in > LONG * limit
            parts = passages(one.text, one.sections, limit) if split else [one.text]
            count, others = len(parts), [None] * (len(parts) - 1)
            cut += tokens_in > limit and count == 1
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

    def _counts(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has; of short and of very long ones, about how many."""
        limit = self.model.limit
        counts = [len(text) if len(text) <= limit else len(text) // 16 for text in texts]
        unsure = [row for row, text in enumerate(texts) if len(text) > limit and counts[row] <= LONG * limit]
        for row, count in zip(unsure, self.encoder.token_counts([texts[row] for row in unsure]), strict=True):
            counts[row] = count
        return counts


def passages(text: str, sections: Sequence[str], limit: int) -> list[str]:
    """Split the text of a long document, or its sections if it has any, for a model that reads ``limit`` tokens."""
    words = max(min(_WORDS, int(_PART * limit)), _OVERLAP)
    return [passage for part in (sections or [text]) for passage in _windows(part, words)]


def _windows(text: str, words: int) -> Iterator[str]:
    spans = [match.span() for match in _WORD.finditer(text)]
    step = words - words // _OVERLAP
    for start in range(0, len(spans), step):
        end = min(start + words, len(spans))
        if len(spans) - end < words // _OVERLAP:  # no rest of a few words
            end = len(spans)
        yield text[spans[start][0] : spans[end - 1][1]]
        if end == len(spans):
            return
