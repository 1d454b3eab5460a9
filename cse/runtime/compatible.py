"""``encode`` and ``similarity`` of every encoder, which also take the arguments of ``SentenceTransformer``.

With its other methods here, the library's evaluators take our encoders as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cse.artifact import short
from cse.errors import CseError
from cse.runtime.bank import Chosen
from cse.runtime.encode import Encoded, cosine_similarity, is_text
from cse.runtime.uses import QUERY, role_for

# of the library's ``encode``: what is decided when ours are loaded or cannot be, and what has another name here
_ONLY = {"device": None, "output_value": "sentence_embedding", "precision": "float32"}
_OURS = {"prompt_name": "role", "truncate_dim": "dimensions", "normalize_embeddings": "normalize"}
_WORDS = {*_ONLY, *_OURS, "convert_to_numpy", "convert_to_tensor", "prompt"}


class _NoCard:
    """Where the library would keep scores for a model card; ours are in ``data/metrics``."""

    def set_evaluation_metrics(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""


class Compatible:
    """What all encoders share; each has its own ``encode_counting``, which says how many sentences were cut."""

    similarity_fn_name = "cosine"
    model_card_data = _NoCard()
    texts: dict[str, str]
    encode_counting: Callable[..., Encoded]

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        *,
        domain: Chosen = None,
        role: str | None = None,
        dimensions: int | None = None,
        **theirs: Any,
    ) -> NDArray[np.float32]:
        """Return embeddings ``(n, D)`` float32 in the order of the sentences; ``(D,)`` for a single ``str``.

        Sentences are cut at ``max_length`` tokens.

        Args:
            sentences: texts, possibly none.
            batch_size: maximum rows per batch; None: 64, or on a GPU as many as hold 16,384 tokens.
            normalize: whether embeddings have unit length; None: they have, unless the bundle or domain was exported
                otherwise.
            show_progress_bar: whether to show a progress bar on stderr.
            domain: whose prompts to use, for a bank: a name for all sentences or one per sentence; ``auto`` chooses the
                domain whose text is nearest.
            role: whose task text goes before each sentence, for instance ``query``; None: no text. With a query side,
                role ``query`` takes it, and all others take the bare backbone.
            dimensions: how many numbers to keep of each vector, one of ``widths``; None: all.
            theirs: of ``SentenceTransformer.encode``: ``prompt_name`` is ``role``, ``truncate_dim`` ``dimensions``, and
                ``normalize_embeddings`` ``normalize``; ``prompt`` is put before each text.

        Raises:
            CseError: an item is not text, an embedding is not finite (names the sentence), the role or the number of
                dimensions is not the model's, or the domain is missing, unknown, damaged, or given to a single model.
        """
        for name, value in theirs.items():
            if name not in _WORDS:
                raise TypeError(f"encode() got an unexpected keyword argument {name!r}")
            if name in _ONLY and value not in (None, _ONLY[name]):
                raise CseError(f"{name}: {short(value)} is not possible here; leave it out")
        if before := theirs.get("prompt"):
            sentences = before + sentences if isinstance(sentences, str) else [before + text for text in sentences]
        ours: dict[str, Any] = {"role": role, "dimensions": dimensions, "normalize": normalize}
        ours |= {_OURS[name]: theirs[name] for name in _OURS if theirs.get(name) is not None}
        options = {"show_progress_bar": show_progress_bar, "domain": domain}
        found = self.encode_counting(sentences, batch_size, **options, **ours).warned()
        if theirs.get("convert_to_tensor"):
            return _tensor(found)
        return found if theirs.get("convert_to_numpy", True) else list(_tensor(found))  # type: ignore[return-value]

    def similarity(self, a: Sequence[str] | ArrayLike, b: Sequence[str] | ArrayLike) -> NDArray[np.float32]:
        """Return the cosines ``(n, m)`` between ``a`` and ``b``, each sentences or embeddings; of tensors, a tensor."""
        found = cosine_similarity(*(self.encode(x) if is_text(x) else x for x in (a, b)))  # type: ignore[arg-type]
        return _tensor(found) if any(type(x).__module__ == "torch" for x in (a, b)) else found

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the task text of role ``query``, if the model has one."""
        return self._in_role(QUERY, sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the task text of role ``document``, ``passage`` or ``corpus``, if the model has one."""
        return self._in_role("document", sentences, options)

    def texts_of(self, domain: Chosen) -> Mapping[str, str]:
        """Return the task texts by role."""
        return self.texts

    def _in_role(self, kind: str, sentences: str | Sequence[str], options: dict[str, Any]) -> Any:
        role = role_for(kind, self.texts_of(options.get("domain")))
        if role is not None and not (options.get("prompt_name") or options.get("prompt")):
            options["prompt_name"] = role
        return self.encode(sentences, **options)


def _tensor(found: np.ndarray) -> Any:
    # the runtime needs no torch; a caller that asks for its tensors has it
    return importlib.import_module("torch").from_numpy(found)
