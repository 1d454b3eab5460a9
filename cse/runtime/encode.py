"""Encode sentences; shared by the torch encoder and the ONNX encoder.

Legend: ``n`` sentences, ``b`` rows of a batch, ``l`` tokens of its longest row, ``d`` embedding width.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cse.errors import CseError
from cse.runtime.seal import short

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from cse.runtime.domain import Domain

Float = TypeVar("Float", np.float32, np.float64)
Embed = Callable[[NDArray[np.int64], NDArray[np.int64], "list[Domain]"], NDArray[np.float32]]

_CHUNK = 8192
_NO_TOKENS = np.empty(0, np.int32)
_log = logging.getLogger("cse")


class Encoded(NamedTuple):
    """Result of ``encode_sentences``.

    Attributes:
        embeddings: (n, d) float32; (d,) for a single ``str``.
        truncated: number of distinct sentences cut at ``max_length`` tokens.
        distinct: number of distinct sentences; in a bank, of distinct pairs of sentence and domain.
        max_length: in tokens, special tokens included; in a bank, the shortest of its domains in use.
        domains: name of each sentence's domain; empty without a bank.
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


class Tokenizers:
    """Copies of a tokenizer that truncate and do not pad, one per maximum length.

    Making a copy takes tens of milliseconds, so they are kept. The caller's tokenizer is not modified.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._copies: dict[int, Tokenizer] = {}

    def truncating_at(self, max_length: int) -> Tokenizer:
        """Return the copy that truncates at ``max_length`` tokens, special tokens included."""
        if max_length not in self._copies:
            copy = type(self._tokenizer).from_str(self._tokenizer.to_str())
            copy.no_padding()
            copy.enable_truncation(max_length)
            self._copies[max_length] = copy
        return self._copies[max_length]


def encode_sentences(
    sentences: str | Sequence[str],
    *,
    tokenizers: Tokenizers,
    embed: Embed,
    dimension: int,
    max_length: int,
    pad_id: int,
    domains: Sequence[Domain] = (),
    batch_size: int = 64,
    batch_tokens: int | None = None,
    normalize: bool = True,
    show_progress_bar: bool = False,
    workers: int = 1,
) -> Encoded:
    """Encode sentences and return their embeddings in the same order.

    Repeated sentences are encoded once. Batches are formed by token count and padded to their own longest row, so that
    little is computed on padding.

    Args:
        sentences: texts, possibly empty. A single ``str`` gives one vector.
        tokenizers: truncating tokenizers.
        embed: maps ids (b, l), mask (b, l; 1 for a token, 0 for padding) and the rows' domains (b, or none) to
            embeddings (b, d). With ``workers`` above 1, several threads call it at once.
        dimension: d.
        max_length: maximum tokens per sentence, special tokens included; a domain has its own.
        pad_id: padding token id.
        domains: domain of each sentence (n), or none.
        batch_size: maximum rows per batch.
        batch_tokens: maximum tokens per batch, padding included; None: no limit. A batch has at least one row.
        normalize: whether to scale each embedding to unit length; a zero vector stays zero.
        show_progress_bar: whether to show a progress bar, which counts distinct sentences.
        workers: number of threads that run batches.

    Raises:
        CseError: the sentences are unordered (a set, a dict), have more than one axis or contain an item that is not
            text; the batch size is not a positive integer; ``normalize`` is not a boolean; or an embedding is not
            finite.
    """
    if isinstance(sentences, str):
        single, texts = True, [sentences]
    else:
        single, texts = False, as_texts(sentences)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise CseError(f"batch_size: {short(batch_size)} is not valid; give a whole number of at least 1")
    if not isinstance(normalize, bool | np.bool):
        raise CseError(f"normalize: expected True or False, found {short(normalize)}")
    limits = [domain.max_length for domain in domains] or [max_length] * len(texts)
    kinds: Sequence[Domain | None] = domains or [None] * len(texts)
    first: dict[tuple[str, Domain | None], int] = {}
    for index, key in enumerate(zip(texts, kinds, strict=True)):
        first.setdefault(key, index)
    distinct = [text for text, _ in first]
    origin = np.fromiter(first.values(), np.int64, len(first))
    tokens, starts, truncated = _tokenize(distinct, [limits[index] for index in origin], tokenizers)
    lengths = np.diff(starts)
    embeddings = np.empty((len(distinct), dimension), np.float32)

    def run(rows: NDArray[np.int64]) -> int:
        ids, mask = _pad(tokens, starts, lengths, rows, pad_id)
        vectors = embed(ids, mask, [domains[index] for index in origin[rows]] if domains else [])
        if vectors.shape != (len(rows), dimension):
            raise CseError(f"the model returned shape {vectors.shape} for {len(rows)} rows of width {dimension}")
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            row = rows[int(np.argmin(finite))]
            text = distinct[row]
            raise CseError(
                f"sentences[{origin[row]}]: its embedding is not finite (text starts {text[:40]!r}); "
                "the weights or prompts contain invalid numbers: train or export again"
            )
        embeddings[rows] = vectors
        return len(rows)

    rows_per_batch = min(batch_size, max(1, -(-len(distinct) // workers)))
    batches = list(_batches(lengths, rows_per_batch, batch_tokens))
    _run_all(run, batches, len(distinct), workers, show_progress_bar)

    if normalize:
        unit_rows(embeddings, out=embeddings)
    if len(distinct) < len(texts):
        position = {key: row for row, key in enumerate(first)}
        embeddings = embeddings[[position[key] for key in zip(texts, kinds, strict=True)]]
    names = [domain.name for domain in domains]
    return Encoded(
        embeddings[0] if single else embeddings, truncated, len(distinct), min(limits, default=max_length), names
    )


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

    Raises:
        CseError: the arguments are not numbers, differ in width or have more than two axes.
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


def as_texts(sentences: Sequence[str]) -> list[str]:
    """Return sentences as a list.

    Raises:
        CseError: they have no order or more than one axis, or an item is not text.
    """
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


def _tokenize(
    texts: list[str], limits: list[int], tokenizers: Tokenizers
) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """Return all tokens in one array, the start of each text in it (plus one entry for the end), and the number of
    truncated texts.
    """
    pieces: list[NDArray[np.int32]] = [_NO_TOKENS] * len(texts)
    truncated = 0
    for max_length in set(limits):
        tokenizer = tokenizers.truncating_at(max_length)
        rows = [row for row, limit in enumerate(limits) if limit == max_length]
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            try:
                encodings = tokenizer.encode_batch_fast([texts[row] for row in chunk])
            except TypeError:
                raise CseError(_not_unicode([texts[row] for row in chunk])) from None
            for row, encoding in zip(chunk, encodings, strict=True):
                ids = encoding.ids
                pieces[row] = np.array(ids, np.int32)
                truncated += len(ids) == max_length and bool(encoding.overflowing)
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=starts[1:])
    return np.concatenate([_NO_TOKENS, *pieces]), starts, truncated


def _not_unicode(texts: list[str]) -> str:
    """Name the text that the tokenizer refused."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return f"text {text[:40]!a}: contains a lone surrogate; decode the source with its own encoding"
    return f"the tokenizer refused a text among those that start {texts[0][:40]!r}"


def _batches(lengths: NDArray[np.int64], rows: int, tokens: int | None) -> Iterator[NDArray[np.int64]]:
    """Yield row numbers, longest rows first, so that memory peaks early and threads finish at about the same time."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        count = rows if tokens is None else max(1, min(rows, tokens // longest))
        yield order[start : start + count]
        start += count


def _pad(
    tokens: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64], rows: NDArray[np.int64], pad: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask (b, l) of the given rows; a batch without any tokens gets one masked column."""
    columns = np.arange(max(1, int(lengths[rows].max())))
    mask = columns < lengths[rows, None]
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = tokens[(starts[rows, None] + columns)[mask]]
    return ids, mask.astype(np.int64)


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
    from tqdm import tqdm

    return tqdm(total=total, unit="sentence", desc="encode")
