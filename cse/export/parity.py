"""Check that a bundle matches its model: ONNX against torch on real sentences, in batches and one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cse.choices import Precision, ReadOut
from cse.errors import CseError
from cse.export.bundle import write_bundle
from cse.model.backbone import Backbone, load_backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY

HALF = 1e-2  # fp16: largest error of a vector of unit length; MiniLM's is 1e-3
ROUNDED = 0.98  # int8: lowest mean cosine with torch; MiniLM's is 0.996
NEIGHBOURS = 0.9  # int8: lowest share of their lead that nearest neighbours keep; MiniLM's is 0.999
TRAINED = 0.5  # lowest share of what training changed; below it, the bare backbone is the nearer one
_CLEAR = 4.0  # rounding up to a quarter of what training changed cannot be taken for it


class _Encoder(Protocol):
    def encode(self, sentences: Sequence[str], *, normalize: bool, role: str | None = None) -> np.ndarray: ...


class _OnnxEncoder(_Encoder, Protocol):
    @property
    def provider(self) -> str: ...


def check_parity(
    encoder: _Encoder,
    onnx: _OnnxEncoder,
    sentences: Sequence[str],
    *,
    tolerance: float,
    precision: Precision = "fp32",
    name: str = "ONNX",
) -> dict[str, Any]:
    """Compare unit-length embeddings of both, in padded batches and for a few sentences one by one.

    Of a model with a query side, documents are compared and then queries, and the worse figures are returned.

    ``fp32`` must agree in every component, ``fp16`` in every vector, ``int8`` on average and in which sentences are
    nearest. Of a trained model, any precision must also hold what the training changed: see ``share_of_training``.

    Args:
        tolerance: fp32: largest difference allowed.

    Returns:
        ``largest_difference`` (absolute, over all components), ``sentences`` compared, ``provider``; ``tolerance`` for
        fp32, else ``mean_cosine`` and ``neighbours``; ``of_training`` if there was a training to look for.
    """
    for one in (encoder, onnx):  # what both keep would be compared with itself
        assert not isinstance(one, SentenceEncoder | OnnxEncoder) or one.kept is None, "kept vectors"  # noqa: S101
    two_sides = isinstance(encoder, SentenceEncoder) and encoder.side == QUERY
    found = [
        _compare(encoder, onnx, sentences, role, tolerance=tolerance, precision=precision, name=name)
        for role in ((None, QUERY) if two_sides else (None,))
    ]
    worse = {"largest_difference": max, "mean_cosine": min, "neighbours": min}
    return found[-1] | {key: pick(one[key] for one in found) for key, pick in worse.items() if key in found[-1]}


def _compare(
    encoder: _Encoder,
    onnx: _OnnxEncoder,
    sentences: Sequence[str],
    role: str | None,
    *,
    tolerance: float,
    precision: Precision,
    name: str,
) -> dict[str, Any]:
    """Compare both in one role, see ``check_parity``."""
    expected = encoder.encode(sentences, normalize=True, role=role)
    found = onnx.encode(sentences, normalize=True, role=role)
    alone = np.stack([onnx.encode([text], normalize=True, role=role)[0] for text in sentences[:4]])
    errors = np.concatenate([found, alone]) - np.concatenate([expected, expected[: len(alone)]])
    facts: dict[str, Any] = {
        "largest_difference": float(f"{np.abs(errors).max():.1e}"),
        "sentences": len(sentences),
        "provider": onnx.provider,
    }
    if precision == "int8":
        facts |= check_rounded(expected, found, alone)
    else:
        size = np.abs(errors).max(axis=1) if precision == "fp32" else np.linalg.norm(errors, axis=1)
        key, most = ("tolerance", tolerance) if precision == "fp32" else ("precision", HALF)
        worst = int(size.argmax())
        if not size[worst] <= most:
            text = [*sentences, *sentences][worst if worst < len(sentences) else worst - len(sentences)]
            raise CseError(
                f"export.{key}: {name} differs from torch by {size[worst]:.1e} on {text[:60]!r}, more than {most:.0e}; "
                "nothing was published"
            )
        facts |= {"tolerance": most}
    if isinstance(encoder, SentenceEncoder):
        share = share_of_training(encoder, expected, found, sentences, precision=precision, least=tolerance, role=role)
        if share is not None:
            facts["of_training"] = share
    return facts


def check_rounded(
    expected: np.ndarray, found: np.ndarray, alone: np.ndarray, of: str = "your texts"
) -> dict[str, float]:
    """Return the mean cosine of int8 vectors (n, d) with torch's, and how far nearest neighbours keep their lead.

    The lead is how much nearer the nearest other text is than texts are on average. Taken for the neighbour that the
    bundle chooses, by torch's cosines, it shows a swap where it costs something; for vectors of other texts it is 0,
    however narrow the cone that all vectors lie in.
    """
    cosine = float(
        np.concatenate([(expected * found).sum(axis=1), (expected[: len(alone)] * alone).sum(axis=1)]).mean()
    )
    kept = 1.0
    if len(expected) > 2:
        wanted, own = (vectors @ vectors.T - 4 * np.eye(len(vectors)) for vectors in (expected, found))
        others = (wanted.sum(axis=1) - np.diag(wanted)) / (len(wanted) - 1)
        lead = wanted.max(axis=1) - others
        chosen = wanted[np.arange(len(wanted)), own.argmax(axis=1)] - others
        kept = float(chosen.sum() / max(lead.sum(), np.finfo(np.float32).tiny))
    if not (cosine >= ROUNDED and kept >= NEIGHBOURS):
        raise CseError(
            f"export.precision: int8 keeps of {of} a mean cosine of {cosine:.3f} with torch (at least {ROUNDED}) and "
            f"{kept:.2f} of its nearest neighbours' lead (at least {NEIGHBOURS}); export in fp32 or fp16; nothing was "
            "published"
        )
    return {"mean_cosine": round(cosine, 4), "neighbours": round(kept, 4)}


def share_of_training(
    encoder: SentenceEncoder,
    expected: np.ndarray,
    found: np.ndarray,
    sentences: Sequence[str],
    *,
    precision: Precision,
    least: float,
    role: str | None = None,
) -> float | None:
    """Return how much of what training changed the exported vectors hold: 1 is all, 0 the bare backbone.

    With the model's vectors ``c``, the bare backbone's ``b`` and the exported ones ``o``, it is
    ``sum (o - b) . (c - b) / sum |c - b|^2``. Where ``fp16`` moves vectors nearly as far as training did, ``o`` is
    compared with the backbone's own vectors in that precision, in which most of the rounding is the same. ``int8``
    rounds each model in its own way, so what it moves farther than training did is not to be seen.

    Args:
        least: largest component of a change that counts as none.

    Returns:
        The share; None if nothing was changed, or the backbone's vectors are of another width.
    """
    bare = _bare_of(encoder)
    if bare is None or bare.dimension != expected.shape[1]:
        return None
    start = bare.encode(sentences, normalize=True, role=role)
    change = expected - start
    if np.abs(change).max() <= least:
        return None
    moved, rounded = np.linalg.norm(change), np.linalg.norm(found - expected)
    if precision == "fp16" and moved < _CLEAR * rounded:
        with tempfile.TemporaryDirectory() as folder:
            with write_bundle(bare, Path(folder) / "bare", normalize=True, metrics={}, precision=precision):
                pass
            start = OnnxEncoder(Path(folder) / "bare", provider="cpu").encode(sentences, normalize=True, role=role)
    share = float(((found - start) * change).sum() / np.square(change).sum())
    if not share >= TRAINED:
        raise CseError(
            f"export.precision: the {precision} vectors hold {100 * share:.0f} % of what training changed, less than "
            f"{100 * TRAINED:.0f} %: they are nearer to the bare backbone's; export this checkpoint again, in fp32 if "
            "it is so; nothing was published"
        )
    if precision == "int8" and moved < rounded:
        raise CseError(
            f"export.precision: int8 moves vectors {rounded / moved:.1f} times as far as training did, so little of it "
            "would be left; export in fp32 or fp16; nothing was published"
        )
    return round(share, 3)


def _bare_of(encoder: SentenceEncoder) -> SentenceEncoder | None:
    """Return the backbone as it was before training; None for word vectors."""
    backbone = encoder.backbone
    if not isinstance(backbone, Backbone):
        return None
    if encoder.side == QUERY:
        return encoder.documents
    if not encoder.frozen:
        backbone = load_backbone(backbone.files)
    kind = encoder.pooler
    return SentenceEncoder(backbone, read_out=ReadOut(kind if kind in ("mean", "cls", "last") else "mean"))
