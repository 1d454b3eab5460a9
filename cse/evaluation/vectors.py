"""Embeddings of an evaluation: each distinct sentence is encoded once, however many tasks it occurs in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from cse.evaluation.measures import NotFinite, pair_cosines


class TextEncoder(Protocol):
    """Anything that turns sentences into vectors: the training model, the ONNX runtime, a baseline."""

    def encode(
        self, sentences: list[str], /, *, batch_size: int = ..., normalize: bool = ..., show_progress_bar: bool = ...
    ) -> np.ndarray:
        """Return embeddings ``(n, d)`` in the order of the sentences; dropout off."""
        ...


class Vectors:
    """Embeddings by sentence.

    Args:
        sentences: the sentences to look up later; repetitions allowed.

    Raises:
        NotFinite: a sentence whose embedding is not finite.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        sentences: Iterable[str],
        batch_size: int | None = None,
        progress: bool = False,
        role: str | None = None,
    ) -> None:
        self._rows: dict[str, int] = {}
        for sentence in sentences:
            self._rows.setdefault(sentence, len(self._rows))
        options = {"role": role, "batch_size": batch_size}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self._embeddings: np.ndarray = np.empty((0, 0), np.float32)
        if self._rows:
            self._embeddings = encoder.encode(list(self._rows), normalize=False, show_progress_bar=progress, **given)
        finite = np.isfinite(self._embeddings).all(axis=1)
        if not finite.all():
            sentence = next(text for text, row in self._rows.items() if not finite[row])
            shown = sentence if len(sentence) <= 60 else sentence[:57] + "..."
            raise NotFinite(
                f"evaluation: {int((~finite).sum())} of {len(self)} embeddings are not finite, the first of "
                f"{shown!r}; the model's weights have probably diverged, train with a lower learning rate"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the embeddings of sentences, ``(n, d)``, unchanged."""
        return self._embeddings[[self._rows[sentence] for sentence in sentences]]

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
        """Return the cosine of each pair of sentences, float64 ``(n,)``."""
        return pair_cosines(self.of(first), self.of(second))
