"""Arguments and methods of ``SentenceTransformer``, so that its evaluators take our encoders as they are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from cse.errors import CseError
from cse.runtime.seal import short

Method = TypeVar("Method", bound=Callable[..., Any])

# of the library's ``encode``, besides batch_size and show_progress_bar
_WORDS = frozenset({
    "convert_to_numpy", "convert_to_tensor", "device", "normalize_embeddings", "output_value", "precision", "prompt",
    "prompt_name", "truncate_dim",
})  # fmt: skip
_ONLY = {"device": None, "output_value": "sentence_embedding", "precision": "float32"}
_DOCUMENT = ("document", "passage", "corpus")  # the library's names of that role, in its order


def in_their_words(encode: Method) -> Method:
    """Let an ``encode`` also take the library's arguments.

    ``prompt_name`` is our ``role``, ``truncate_dim`` our ``dimensions``, ``normalize_embeddings`` our ``normalize``;
    ``prompt`` is put before each text; ``convert_to_tensor`` and ``convert_to_numpy`` choose the kind of array.
    What our encoders decide when they are loaded (``device``) or cannot do (another ``precision`` or ``output_value``)
    is refused.
    """

    @functools.wraps(encode)
    def either(self: Any, sentences: str | Sequence[str], *arguments: Any, **given: Any) -> Any:
        theirs = {name: given.pop(name) for name in _WORDS & given.keys()}
        if not theirs:
            return encode(self, sentences, *arguments, **given)
        _refuse(theirs)
        before = theirs.get("prompt") or ""
        texts = before + sentences if isinstance(sentences, str) else [before + text for text in sentences]
        ours = {"role": theirs.get("prompt_name"), "dimensions": theirs.get("truncate_dim")}
        ours["normalize"] = theirs.get("normalize_embeddings")
        found = encode(self, texts, *arguments, **given, **{k: v for k, v in ours.items() if v is not None})
        if theirs.get("convert_to_tensor"):
            return _tensor(found)
        return found if theirs.get("convert_to_numpy", True) else list(_tensor(found))

    return either  # type: ignore[return-value]


def of_the_same_kind(similarity: Method) -> Method:
    """Let a ``similarity`` of torch tensors return a torch tensor."""

    @functools.wraps(similarity)
    def either(self: Any, a: Any, b: Any) -> Any:
        tensors = any(type(value).__module__ == "torch" for value in (a, b))
        return _tensor(similarity(self, a, b)) if tensors else similarity(self, a, b)

    return either  # type: ignore[return-value]


class _NoCard:
    """Where the library would keep scores for a model card; ours are in ``data/metrics``."""

    def set_evaluation_metrics(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""


class Compatible:
    """Methods of ``SentenceTransformer`` that its evaluators call."""

    similarity_fn_name = "cosine"
    model_card_data = _NoCard()
    texts: dict[str, str]
    encode: Callable[..., Any]

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the task text of role ``query``, if the model has one."""
        return self._in_role(("query",), sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Encode with the task text of role ``document``, ``passage`` or ``corpus``, if the model has one."""
        return self._in_role(_DOCUMENT, sentences, options)

    def texts_of(self, domain: Any) -> Mapping[str, str]:
        """Return the task texts by role; in a bank, those of a domain."""
        bank = getattr(self, "bank", None)
        return self.texts if bank is None else bank.texts_of(domain)

    def _in_role(self, roles: Sequence[str], sentences: str | Sequence[str], options: dict[str, Any]) -> Any:
        chosen = options.get("prompt_name") or options.get("prompt")
        texts = self.texts_of(options.get("domain"))
        role = next((role for role in roles if role in texts), None)
        if not chosen and role is not None:
            options["prompt_name"] = role
        return self.encode(sentences, **options)


def _refuse(theirs: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        value = theirs.get(name)
        if value not in (None, only):
            raise CseError(f"{name}: {short(value)} is not possible here; leave it out")


def _tensor(found: np.ndarray) -> Any:
    # the runtime needs no torch; a caller that asks for its tensors has it
    return importlib.import_module("torch").from_numpy(found)
