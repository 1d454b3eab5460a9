"""Encode sentences; shared by the torch encoder and the ONNX encoder.

Legend: ``n`` sentences, ``m`` distinct ones, ``b`` rows of a batch, ``l`` tokens of its longest row, ``d`` embedding
width.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cse.artifact import short
from cse.errors import CseError
from cse.runtime.tokens import Tokenizers, Tokens, pad, tokenize

if TYPE_CHECKING:
    from cse.runtime.domain import Domain

Float = TypeVar("Float", np.float32, np.float64)
GPU_BATCH_TOKENS = 16_384  # padding included
_LINE_SECONDS = 15.0  # between two lines of progress
Embed = Callable[[NDArray[np.int64], NDArray[np.int64], "list[Domain]"], NDArray[np.float32]]

_log = logging.getLogger("cse")


class Encoded(NamedTuple):
    """Embeddings (n, d), or (d,) of a single ``str``; how many of the distinct pairs of sentence and domain were cut at
    ``max_length`` tokens, of several domains the shortest; and the name of each sentence's domain, if it has any.
    """

    embeddings: NDArray[np.float32]
    truncated: int
    distinct: int
    max_length: int
    domains: list[str]

    def warned(self) -> NDArray[np.float32]:
        """Return the embeddings; log a warning if sentences were truncated."""
        if self.truncated:
            _log.warning("%d of %d distinct sentences were cut at %d tokens", *self[1:4])
        return self.embeddings


@dataclass(frozen=True)
class Prepared:
    """Sentences whose tokens are known, see ``prepare_sentences``.

    Attributes:
        texts: the sentences of the distinct pairs of sentence and domain (m).
        domains: theirs (m), or none of a model without.
        first: where each stands first among the sentences (m).
        places: which of them each sentence is (n).
        names: name of each sentence's domain (n), or none.
        width: numbers of a vector; None: all that the model has.
        again: prepares the sentences once it is given the bare backbone's vectors of these, by which they choose their
            domains; None: they have them.
    """

    texts: list[str]
    tokens: Tokens
    domains: list[Domain]
    first: NDArray[np.int64]
    places: NDArray[np.int64]
    max_length: int
    single: bool
    names: Sequence[str] = ()
    width: int | None = None
    again: Callable[[NDArray[np.float32]], Prepared] | None = None

    def __len__(self) -> int:
        """Return n."""
        return len(self.places)


def prepare_sentences(
    sentences: str | Sequence[str],
    *,
    tokenizers: Tokenizers,
    max_length: int,
    domains: Sequence[Domain] = (),
    before: str = "",
) -> Prepared:
    """Tokenise sentences, repeated ones once: what a CPU does before any model runs.

    Args:
        sentences: n texts, possibly none. A single ``str`` gives one vector.
        max_length: maximum tokens per sentence, special tokens included; a domain has its own.
        domains: domain of each sentence (n), or none.
        before: task text to put before each sentence.
    """
    single = isinstance(sentences, str)
    texts = [sentences] if isinstance(sentences, str) else as_texts(sentences)
    if before:
        texts = [before + text for text in texts]
    kinds: Sequence[Domain | None] = domains or [None] * len(texts)
    row: dict[tuple[str, Domain | None], int] = {}
    keys = zip(texts, kinds, strict=True)
    places = np.fromiter((row.setdefault(key, len(row)) for key in keys), np.int64, len(texts))
    distinct, own = [text for text, _ in row], [domain for _, domain in row if domain is not None]
    limits = [domain.max_length for domain in own] or [max_length] * len(distinct)
    tokens = tokenize(distinct, limits, tokenizers)
    first = np.unique(places, return_index=True)[1]
    return Prepared(distinct, tokens, own, first, places, min(limits, default=max_length), single)


def encode_prepared(
    prepared: Prepared,
    *,
    embed: Embed,
    dimension: int,
    pad_id: int,
    batch_size: int = 64,
    batch_tokens: int | None = None,
    batch_padding: int | None = None,
    multiple: int = 1,
    normalize: bool | None = True,
    show_progress_bar: bool = False,
    workers: int = 1,
    keep: int | None = None,
) -> Encoded:
    """Encode tokenised sentences and return their embeddings in the same order.

    Batches are formed by token count and padded to their own longest row, so that little is computed on padding; rows
    of several domains mix. In an array of several domains, narrower vectors end in zeros, which no cosine sees.

    Args:
        embed: maps ids (b, l), mask (b, l; 1 for a token, 0 for padding) and the rows' domains (b, or none) to
            embeddings (b, d). With ``workers`` above 1, several threads call it at once.
        batch_size: maximum rows per batch.
        batch_tokens: maximum tokens per batch, padding included; None: no limit. A batch has at least one row.
        batch_padding: maximum padding of a row, in tokens, before the next; None: no limit.
        multiple: of which the padded length of a batch is one, in tokens, as far as the model's limit allows it.
        normalize: whether to scale each embedding to unit length; a zero vector stays zero; None: as its domain says.
        keep: how many of the d numbers to keep of each embedding, before it is scaled; None: all.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise CseError(f"batch_size: {short(batch_size)} is not valid; give a whole number of at least 1")

    def compute(prepared: Prepared) -> NDArray[np.float32]:
        texts, tokens, domains = prepared.texts, prepared.tokens, prepared.domains
        embeddings = np.empty((len(texts), dimension), np.float32)

        def run(rows: NDArray[np.int64]) -> int:
            ids, mask = pad([tokens.row(row) for row in rows], pad_id, multiple, prepared.max_length)
            vectors = embed(ids, mask, [domains[row] for row in rows] if domains else [])
            if vectors.shape != (len(rows), dimension):
                raise CseError(f"the model returned shape {vectors.shape} for {len(rows)} rows of width {dimension}")
            finite = np.isfinite(vectors).all(axis=1)
            if not finite.all():
                row = rows[int(np.argmin(finite))]
                raise CseError(
                    f"sentences[{prepared.first[row]}]: its embedding is not finite (text starts {texts[row][:40]!r}); "
                    "the weights or prompts contain invalid numbers: train or export again"
                )
            embeddings[rows] = vectors
            return len(rows)

        most = min(batch_size, max(1, -(-len(texts) // workers)))
        batches = list(_batches(-(-tokens.lengths // multiple) * multiple, most, batch_tokens, batch_padding))
        _run_all(run, batches, len(texts), workers, show_progress_bar)
        return embeddings

    if prepared.again is not None:
        prepared = prepared.again(compute(prepared)[prepared.places])
    if not isinstance(normalize, bool | np.bool) and (normalize is not None or len(prepared) > len(prepared.names)):
        raise CseError(f"normalize: expected True or False, found {short(normalize)}")
    return _scaled(compute(prepared), prepared, normalize, keep)


def _scaled(embeddings: NDArray[np.float32], prepared: Prepared, normalize: bool | None, keep: int | None) -> Encoded:
    """Return vectors (m, d) cut, scaled and in the order of the sentences."""
    if keep is not None:
        embeddings = np.ascontiguousarray(embeddings[:, :keep])
    own = prepared.domains
    unit = [normalize or (normalize is None and domain.facts.normalize) for domain in own] or [bool(normalize)]
    if all(unit):
        unit_rows(embeddings, out=embeddings)
    elif any(unit):
        embeddings[unit] = unit_rows(embeddings[unit])
    if prepared.width is not None and keep is None:
        embeddings = np.ascontiguousarray(embeddings[:, : prepared.width])
    distinct = len(embeddings)
    if distinct < len(prepared):
        embeddings = embeddings[prepared.places]
    found = embeddings[0] if prepared.single else embeddings
    return Encoded(found, prepared.tokens.truncated, distinct, prepared.max_length, [*prepared.names])


def is_text(values: Any) -> bool:
    """Return whether the argument of ``similarity`` is sentences (one, several or none) rather than embeddings."""
    if isinstance(values, str):
        return True
    if hasattr(values, "dtype"):
        return getattr(values.dtype, "kind", "f") in "UO"
    return isinstance(values, Sequence) and (not values or any(isinstance(value, str) for value in values))


def cosine_similarity(a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
    """Return the cosines (n, m) float32 between all rows of ``a`` (n, d) and of ``b`` (m, d).

    A vector (d,) counts as one row. The cosine with a zero vector is 0.
    """
    try:
        left, right = (np.atleast_2d(np.asarray(x, np.float32)) for x in (a, b))
    except (TypeError, ValueError):
        raise CseError("similarity: expected sentences or vectors (n, d), found neither") from None
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1]:
        raise CseError(f"similarity: shapes {left.shape} and {right.shape} do not match; give (n, d) and (m, d)")
    return unit_rows(left) @ unit_rows(right).T


def unit_rows(rows: NDArray[Float], out: NDArray[Float] | None = None) -> NDArray[Float]:
    """Return rows (n, d) scaled to unit length, in their own precision; a zero row stays zero.

    Args:
        rows: float32 or float64.
        out: array for the result; may be ``rows`` itself.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, np.where(norms > 0, norms, norms.dtype.type(1)), out=out)


def best_places(values: NDArray[np.floating[Any]], count: int, above: float = -np.inf) -> NDArray[np.int64]:
    """Return the places of the ``count`` highest values above a bound, best first; of equal ones, the earlier."""
    places = np.flatnonzero(values > above)
    if len(places) > count:
        lowest = np.partition(values[places], -count)[-count]
        places = places[values[places] >= lowest]
    return places[np.argsort(-values[places], kind="stable")][:count]


def as_texts(sentences: Sequence[str]) -> list[str]:
    """Return sentences as a list."""
    try:
        # iterating a table yields columns, a dict keys
        if isinstance(sentences, set | frozenset | dict) or getattr(sentences, "ndim", 1) != 1:
            raise TypeError
        texts = list(sentences)
    except TypeError:
        raise CseError(f"sentences: expected a list of texts, found {type(sentences).__name__}") from None
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise CseError(f"sentences[{index}]: expected text, found {type(text).__name__}; convert or drop it")
    return texts


def _batches(
    lengths: NDArray[np.int64], rows: int, tokens: int | None, padding: int | None
) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers, longest rows first, so that memory peaks early and threads finish at about the same time."""
    order = np.argsort(-lengths, kind="stable")
    falling = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(1, -int(falling[start]))
        count = rows if tokens is None else max(1, min(rows, tokens // longest))
        if padding is not None:
            count = max(1, min(count, int(np.searchsorted(falling, padding - longest, "right")) - start))
        yield order[start : start + count]
        start += count


def _run_all(
    run: Callable[[NDArray[np.int64]], int], batches: list[NDArray[np.int64]], total: int, workers: int, bar: bool
) -> None:
    """Run all batches on ``workers`` threads; the first error cancels the rest."""
    progress = _progress(total) if bar else None
    pool = ThreadPoolExecutor(workers) if workers > 1 and len(batches) > 1 else None
    try:
        for count in pool.map(run, batches) if pool else map(run, batches):
            if progress is not None:
                progress.update(count)
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
        if progress is not None:
            progress.close()


def _progress(total: int) -> Any:
    """Return a bar on a terminal and in a notebook, elsewhere what writes a line every 15 seconds."""
    if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
        return _Lines(total)
    from tqdm import tqdm

    return tqdm(total=total, unit="sentence", desc="encode", leave=None)  # None: below another bar it goes away


class _Lines:
    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.said = time.monotonic()

    def update(self, count: int) -> None:
        now, self.done = time.monotonic(), self.done + count
        if now - self.said >= _LINE_SECONDS:
            self.said, rate = now, self.done / (now - self.began)
            left = f"{rate:,.0f}/s, {(self.total - self.done) / rate:,.0f} s left"
            sys.stderr.write(f"encode: {self.done:,} of {self.total:,} sentences, {left}\n")

    def close(self) -> None:
        """Nothing to put away."""
