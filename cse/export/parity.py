"""Check that a bundle matches its model: ONNX against torch on real sentences, in batches and one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from cse.errors import CseError


class _Encoder(Protocol):
    def encode(self, sentences: Sequence[str], *, normalize: bool) -> np.ndarray: ...


class _OnnxEncoder(_Encoder, Protocol):
    @property
    def provider(self) -> str: ...


_ROUNDED = 0.2  # a larger difference is an error, not rounding, whose cost the scores tell


def allowed_difference(precision: str, tolerance: float) -> float:
    """Return the largest difference for a bundle of a precision; ``tolerance`` is that of fp32."""
    return tolerance if precision == "fp32" else _ROUNDED


def check_parity(
    encoder: _Encoder, onnx: _OnnxEncoder, sentences: Sequence[str], *, tolerance: float, name: str = "ONNX"
) -> dict[str, Any]:
    """Compare unit-length embeddings of both, in padded batches and for a few sentences one by one.

    Args:
        encoder: the model.
        onnx: its exported form.
        sentences: texts to compare on.
        tolerance: largest difference allowed.
        name: the exported form in messages.

    Returns:
        ``largest_difference`` (absolute, over all components), ``sentences`` compared, ``tolerance``, ``provider``.

    Raises:
        CseError: a difference exceeds the tolerance; names the sentence.
    """
    expected = encoder.encode(sentences, normalize=True)
    found = onnx.encode(sentences, normalize=True)
    alone = np.stack([onnx.encode([text], normalize=True)[0] for text in sentences[:4]])
    difference = np.abs(found - expected).max(axis=1)
    difference[: len(alone)] = np.maximum(difference[: len(alone)], np.abs(alone - expected[: len(alone)]).max(axis=1))
    worst = int(difference.argmax())
    if not difference[worst] <= tolerance:
        raise CseError(
            f"export.tolerance: {name} differs from torch by {difference[worst]:.1e} on {sentences[worst][:60]!r}, "
            f"more than {tolerance:.0e}; nothing was published"
        )
    return {
        "largest_difference": float(f"{difference[worst]:.1e}"),
        "sentences": len(sentences),
        "tolerance": tolerance,
        "provider": onnx.provider,
    }
