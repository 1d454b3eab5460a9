"""Encode sentences with an ONNX bundle, without torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from cse.errors import CseError, error_line
from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER, verify
from cse.runtime.encode import Encoded, cosine_similarity, encode_sentences, is_text, prepare_tokenizer
from cse.runtime.providers import open_session, usable_cpus

# Tokens per batch on the CPU: activations stay in the L2 cache (measured: 512 to 1024 are equally fast).
_CPU_BATCH_TOKENS = 768
_GIVEN = ("input_ids", "attention_mask")


class OnnxEncoder:
    """Encoder that runs an ONNX bundle.

    On the CPU, many sentences are spread over ``threads`` threads, each running whole batches on one core; without
    barriers inside operators, this is faster than running one batch on all cores. A few sentences run one after
    another on all cores, for low latency. The single-core session opens on first use and has its own copy of the
    weights.

    Args:
        path: bundle folder; every file is checked against its hash.
        provider: ``auto``, ``cpu`` or ``cuda`` (which must attach).
        threads: CPU threads; None: one per usable CPU.
        tf32: whether a GPU may round the inputs of matrix products to TF32, which is faster on NVIDIA Ampere and later
            but changes embeddings in the fourth digit; otherwise products are in full precision, as in torch.

    Attributes:
        manifest: contents of ``bundle.json``.
        dimension: embedding width.
        max_length: maximum tokens per sentence, special tokens included.
        provider: the attached provider, ``cpu`` or ``cuda``.
        provider_note: one line on which provider attached and why.

    Raises:
        CseError: the bundle is damaged or does not load, its manifest does not match its graph or tokenizer, or the
            provider did not attach.
    """

    def __init__(
        self, path: Path | str, *, provider: str = "auto", threads: int | None = None, tf32: bool = False
    ) -> None:
        self.path = Path(path)
        self.manifest = verify(self.path)
        self.dimension = self.manifest.dimension
        self.max_length = self.manifest.max_length
        self.pooler = self.manifest.pooler
        self.threads = usable_cpus() if threads is None else threads
        attached = open_session(self.path / MODEL, provider, self.threads, tf32=tf32)
        self.provider, self.provider_note = attached.provider, attached.note
        logging.getLogger("cse").info("%s: %s", self.path, self.provider_note)
        self._session = attached.session
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._check_graph()
        try:
            tokenizer = Tokenizer.from_file(str(self.path / TOKENIZER))
        except Exception as error:  # tokenizers raises plain Exception
            raise CseError(f"{self.path / TOKENIZER}: not a tokenizer: {error}; export the bundle again") from None
        self._check_tokenizer(tokenizer)
        self._tokenizer = prepare_tokenizer(tokenizer, self.max_length)

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
    ) -> NDArray[np.float32]:
        """Return embeddings (n, d) float32 in the order of the sentences; (d,) for a single ``str``.

        Args:
            sentences: texts, possibly empty.
            batch_size: maximum rows per batch; on the CPU, long sentences run in smaller batches.
            normalize: whether embeddings have unit length; None: the bundle's default.
            show_progress_bar: whether to show a progress bar.

        Raises:
            CseError: an item is not text, or an embedding is not finite.
        """
        counted = self.encode_counting(sentences, batch_size, normalize=normalize, show_progress_bar=show_progress_bar)
        return counted.warned()

    def encode_counting(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
    ) -> Encoded:
        """Encode like ``encode``, but return the number of truncated sentences instead of logging a warning."""
        few = isinstance(sentences, str) or not hasattr(sentences, "__len__") or len(sentences) < 4 * self.threads
        shared_out = self.provider == "cpu" and self.threads > 1 and not few
        session = self._one_core_session if shared_out else self._session
        output = [session.get_outputs()[0].name]

        def embed(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
            feed = {"input_ids": ids, "attention_mask": mask}
            if "token_type_ids" in self._inputs:
                feed["token_type_ids"] = np.zeros_like(ids)
            try:
                return session.run(output, {name: feed[name] for name in self._inputs})[0]
            except Exception as error:  # onnxruntime's exceptions share no base class
                raise CseError(
                    f"{self.path / MODEL}: failed on {ids.shape[0]} rows of {ids.shape[1]} tokens: "
                    f"{error_line(error)[:200]}; give a smaller batch_size, or export again if "
                    f"{MANIFEST} (max_length {self.max_length}) is wrong"
                ) from None

        return encode_sentences(
            sentences,
            tokenizer=self._tokenizer,
            embed=embed,
            dimension=self.dimension,
            max_length=self.max_length,
            pad_id=self.manifest.pad_id,
            batch_size=batch_size,
            batch_tokens=_CPU_BATCH_TOKENS if self.provider == "cpu" else None,
            normalize=self.manifest.normalize if normalize is None else normalize,
            show_progress_bar=show_progress_bar,
            workers=self.threads if shared_out else 1,
        )

    def similarity(self, a: Sequence[str] | ArrayLike, b: Sequence[str] | ArrayLike) -> NDArray[np.float32]:
        """Return the cosines (n, m) between ``a`` and ``b``, each a list of sentences or embeddings (n, d)."""
        return cosine_similarity(self._vectors(a), self._vectors(b))

    def _check_graph(self) -> None:
        """Refuse a graph that does not match the manifest."""
        path = self.path / MODEL
        unknown = self._inputs - {*_GIVEN, "token_type_ids"}
        if unknown:
            raise CseError(f"{path}: needs input {min(unknown)!r}, which no tokenizer provides; export again")
        missing = set(_GIVEN) - self._inputs
        if missing:
            raise CseError(f"{path}: has no input {min(missing)!r}, so it is not a sentence encoder; export again")
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 2 or (isinstance(shape[1], int) and shape[1] != self.dimension):
            raise CseError(
                f"{path}: returns {' x '.join(map(str, shape))}, but {MANIFEST} says one vector of {self.dimension} "
                "numbers per sentence; export again"
            )

    def _check_tokenizer(self, tokenizer: Tokenizer) -> None:
        around = tokenizer.num_special_tokens_to_add(is_pair=False)
        if self.max_length <= around:
            raise CseError(
                f"{self.path / MANIFEST}: max_length {self.max_length} leaves no room besides the {around} tokens that "
                f"{TOKENIZER} adds to a sentence; export again"
            )
        if tokenizer.id_to_token(self.manifest.pad_id) is None:
            raise CseError(
                f"{self.path / MANIFEST}: {TOKENIZER} has no token {self.manifest.pad_id} (pad_id); export again"
            )

    @cached_property
    def _one_core_session(self) -> ort.InferenceSession:
        return open_session(self.path / MODEL, "cpu", 1).session

    def _vectors(self, values: Sequence[str] | ArrayLike) -> ArrayLike:
        return self.encode(values) if is_text(values) else values  # type: ignore[arg-type]
