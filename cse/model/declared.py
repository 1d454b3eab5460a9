"""What a model's folder says of its use as an embedder, in the files of sentence-transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from cse.errors import CseError

MODULES, PROMPTS, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
CARD = "README.md"
_POOLINGS = {
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "cls",
    "pooling_mode_cls_token": "cls",
    "lasttoken": "last",
    "pooling_mode_lasttoken": "last",
}
_KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")  # in this order


@dataclass(frozen=True)
class Declared:
    """What a folder declares; the defaults are those of a plain language model.

    Attributes:
        pooling: ``mean``, ``cls`` or ``last``; None: nothing.
        max_length: maximum tokens per text, special tokens included; None: as many as positions.
        texts: task texts by role, which go before a text: ``{"query": "query: "}``.
        widths: numbers of dimensions that its vectors may be cut to (Matryoshka), ascending.
        dense: folders of the linear layers behind its pooling, in order.
    """

    pooling: str | None = None
    max_length: int | None = None
    texts: dict[str, str] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    dense: tuple[Path, ...] = ()


def languages_of(folder: Path) -> list[str]:
    """Return the language codes that a model's card names; none if it names none, or says ``multilingual``."""
    card = folder / CARD
    if not card.is_file():
        return []
    try:
        named = ModelCard.load(card).data.language
    except ValueError:  # a card that is no valid one says nothing
        return []
    codes = [str(code).lower() for code in ([named] if isinstance(named, str) else named or [])]
    return [] if "multilingual" in codes else codes


def declared_by(folder: Path, pooling: str | None = None) -> Declared:
    """Read what a folder declares.

    Args:
        folder: of the model.
        pooling: chosen by the user, which replaces the folder's.

    Raises:
        CseError: a module that this project does not run, modules in another order, a pooling other than ``mean``,
            ``cls`` and ``last``, or a file that is not valid.
    """
    modules = _modules(folder / MODULES)
    prompts = read_json(folder / PROMPTS)
    texts = prompts.get("prompts") or {}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise CseError(f"backbone.name: {folder / PROMPTS}: prompts is not a table of texts; fetch the model again")
    length = read_json(folder / LENGTH).get("max_seq_length")
    widths = read_json(folder / "config.json").get("matryoshka_dimensions") or []
    return Declared(
        pooling or _pooling_of(folder),
        length if isinstance(length, int) and length > 0 else None,
        {role: text for role, text in texts.items() if text},
        tuple(sorted(widths)),
        tuple(folder / path for kind, path in modules if kind == "Dense"),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a backbone; an empty one for any other value or if there is no file.

    Raises:
        CseError: not valid JSON.
    """
    return tree if isinstance(tree := _read(path), dict) else {}


def _read(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CseError(f"backbone.name: {path}: not valid JSON ({error}); fetch it again") from None


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return class and folder of each module."""
    found = [(str(one.get("type", "")), str(one.get("path", ""))) for one in _read(path) or [] if isinstance(one, dict)]
    kinds = [kind.rpartition(".")[2] for kind, _ in found]
    unknown = [kind for (kind, _), name in zip(found, kinds, strict=True) if name not in _KNOWN]
    if unknown:
        raise CseError(
            f"backbone.name: {path}: module {unknown[0]} is not one of {', '.join(_KNOWN)}, so the vectors would not "
            "be the model's; to use its transformer alone, copy the folder without modules.json"
        )
    if kinds != sorted(kinds, key=_KNOWN.index):
        raise CseError(f"backbone.name: {path}: has its modules in another order than {', '.join(_KNOWN)}")
    return [(kind, place) for kind, (_, place) in zip(kinds, found, strict=True)]


def _pooling_of(folder: Path) -> str | None:
    for path in sorted(folder.glob("*_Pooling/config.json")):
        modes = read_json(path)
        named = modes.get("pooling_mode") or [k for k, on in modes.items() if k.startswith("pooling_mode_") and on]
        names = [named] if isinstance(named, str) else list(named)
        if len(names) != 1 or names[0] not in _POOLINGS:
            raise CseError(
                f"backbone.name: {path} pools by {' and '.join(map(str, names)) or 'nothing'}, which is neither mean, "
                "cls nor last; choose one with pooler.kind"
            )
        if modes.get("include_prompt") is False:
            raise CseError(
                f"backbone.name: {path} leaves the task text out of the mean, which this project does not do"
            )
        return _POOLINGS[names[0]]
    return None
