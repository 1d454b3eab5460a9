"""What a name that a user gives means, and what a model's folder says of its use; no torch, which takes seconds.

A folder declares its use as an embedder in the files of sentence-transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cse.artifact import Kind, read_object, read_value, short
from cse.choices import PoolerKind
from cse.errors import CseError, in_terms_of, nearest, one_line
from cse.runtime.bank import Meaning, meaning_of
from cse.runtime.bundle import MANIFEST

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
CONFIG_FILE = Kind.CHECKPOINT.manifest
_WORD_FILES = (".txt", ".vec")
MODULES, PROMPTS, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
CARD = "README.md"
_POOLINGS: dict[str, PoolerKind] = {
    "mean": "mean",
    "pooling_mode_mean_tokens": "mean",
    "cls": "cls",
    "pooling_mode_cls_token": "cls",
    "lasttoken": "last",
    "pooling_mode_lasttoken": "last",
}
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize")  # in this order
_TYPE = re.compile(rf"sentence_transformers\.(?:\w+\.)*({'|'.join(KNOWN)})")
_AGAIN = "fetch it again"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder claims to be a checkpoint of this project."""
    return (folder / CONFIG_FILE).is_file()


def check_checkpoint(folder: Path) -> None:
    """Raise a CseError if a folder has no checkpoint."""
    if not is_checkpoint(folder):
        raise CseError(f"{folder}: no checkpoint here ({CONFIG_FILE} is missing); `cse train` writes one")


def is_word_file(path: Path) -> bool:
    """Return whether a path is a file whose suffix can only mean word vectors."""
    return path.suffix in _WORD_FILES and path.is_file()


def is_gguf(path: Path) -> bool:
    """Return whether a path is a GGUF file: a language model, its weights mostly quantised."""
    return path.suffix == ".gguf" and path.is_file()


def means_folder(name: str) -> bool:
    """Return whether a name that does not exist can only mean a folder; a hub id is ``name`` or ``owner/name``.

    ``data/bundel`` also means a folder if there is a local folder ``data``.
    """
    parts = Path(name).parts
    local_owner = len(parts) == 2 and Path(parts[0]).is_dir() and name != MINILM
    return name.startswith((".", "/", "~")) or len(parts) > 2 or local_owner


def check_model(path_or_name: str) -> Meaning:
    """Return what a name means; refuse paths that cannot be a model, and a whole bank."""
    found = meaning_of(path_or_name).one()
    folder = found.folder
    if found.kind is not None:
        return found
    if folder.is_file() and not is_word_file(folder):
        raise CseError(f"{folder}: a file; name the folder of a checkpoint, bundle or backbone")
    if not folder.exists() and means_folder(path_or_name):
        raise CseError(f"{path_or_name}: no such folder{nearest(path_or_name, map(str, folder.parent.glob('*/')))}")
    if folder.is_dir() and not (folder / "config.json").is_file():
        inside = [found.parent for name in (MANIFEST, CONFIG_FILE) for found in sorted(folder.glob(f"*/{name}"))[:1]]
        hint = f"; did you mean {inside[0]}?" if inside else "; is it a model folder?"
        raise CseError(f"{folder}: contains no {CONFIG_FILE}, {MANIFEST} or config.json{hint}")
    return found


def check_no_bundle(path_or_name: str | Path) -> Meaning:
    """Return what a name means; refuse what torch does not open."""
    found = meaning_of(path_or_name)
    if found.encodes:
        raise CseError(
            f"{path_or_name}: this is an ONNX bundle or a bank; name the checkpoint it was made of, such as "
            "data/checkpoint, or load it with cse.OnnxEncoder"
        )
    return found


@dataclass(frozen=True)
class Declared:
    """What a folder declares; the defaults are those of a plain language model."""

    pooling: PoolerKind | None = None  # `mean`, `cls` or `last`
    max_length: int | None = None  # maximum tokens per text, special tokens included; None: as many as positions
    texts: dict[str, str] = field(default_factory=dict)  # task texts by role, which go before a text
    widths: tuple[int, ...] = ()  # numbers of dimensions that its vectors may be cut to (Matryoshka), ascending
    dense: tuple[Path, ...] = ()  # folders of the linear layers behind its pooling, in order


def languages_of(folder: Path) -> list[str]:
    """Return the language codes that a model's card names; none if it names none, or says ``multilingual``."""
    from huggingface_hub import ModelCard

    card = folder / CARD
    if not card.is_file():
        return []
    try:
        named = ModelCard.load(card).data.language
    except ValueError:  # a card that is no valid one says nothing
        return []
    codes = [str(code).lower() for code in ([named] if isinstance(named, str) else named or [])]
    return [] if "multilingual" in codes else codes


def declared_by(folder: Path, pooling: PoolerKind | None = None) -> Declared:
    """Read what a folder declares; a pooling that the user chose replaces the folder's."""
    modules = read_modules(folder / MODULES)
    texts = _value(folder / PROMPTS, "prompts", dict, str) or {}
    widths = _value(folder / "config.json", "matryoshka_dimensions", list, int) or []
    return Declared(
        pooling or _pooling_of(folder),
        _value(folder / LENGTH, "max_seq_length", int),
        {role: text for role, text in texts.items() if text},
        tuple(sorted(widths)),
        tuple(folder / path for kind, path in modules if kind == "Dense"),
    )


def _value(path: Path, key: str, kind: type, of: type = int) -> Any:
    """Return a value of a JSON file, None if it has none: text, a number above 0, or a collection of either."""
    value = read_json(path).get(key)
    inside: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    fits = type(value) is kind and all(type(one) is of for one in inside)
    if value is not None and not (fits and (of is str or min(inside, default=1) > 0)):
        raise CseError(f"backbone.name: {path}: {key} is {short(value)}; {_AGAIN}")
    return value


@contextmanager
def reading(what: str, kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Tell in one line, in its own words, what a library refuses inside; they raise exceptions of many kinds."""
    try:
        yield
    except CseError:
        raise
    except kinds as error:
        reason = one_line(str(error))[:200] or type(error).__name__
        raise CseError(f"{what}: {reason}; {_AGAIN}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a backbone; an empty one if there is no file."""
    with in_terms_of("backbone.name: "):
        return read_object(path, _AGAIN) if path.is_file() else {}


def read_modules(path: Path) -> list[tuple[str, str]]:
    """Return class and folder of each module that ``modules.json`` lists; none if there is no such file."""
    if not path.is_file():
        return []
    with in_terms_of("backbone.name: "):
        listed = read_value(path, _AGAIN)
    try:
        found = [(one["type"], _TYPE.fullmatch(one["type"]), PurePosixPath(one.get("path", ""))) for one in listed]
    except (AttributeError, LookupError, TypeError):
        found = []
    if not found:
        raise CseError(f"backbone.name: {path}: not a list of modules; {_AGAIN}")
    for kind, known, place in found:
        if kind.endswith(".Router"):
            raise CseError(
                f"backbone.name: {path}: a Router, which sends queries and documents their own way; two sides are not "
                "read back: use the checkpoint or bundle that this was exported from"
            )
        if known is None:
            raise CseError(
                f"backbone.name: {path}: module {kind[:80]} is not one of sentence-transformers' "
                f"{', '.join(KNOWN)}, so the vectors would not be the model's; to use its transformer alone, copy the "
                "folder without modules.json"
            )
        if place.is_absolute() or ".." in place.parts:
            raise CseError(f"backbone.name: {path}: folder {short(str(place))} lies outside the model; {_AGAIN}")
    kinds = [known[1] for _, known, _ in found if known is not None]
    if kinds != sorted(kinds, key=KNOWN.index):
        raise CseError(f"backbone.name: {path}: has its modules in another order than {', '.join(KNOWN)}")
    return [(kind, str(place)) for kind, (_, _, place) in zip(kinds, found, strict=True)]


def pools_otherwise(folder: Path) -> bool:
    """Return whether a folder declares a pooling that this project has not."""
    try:
        _pooling_of(folder)
    except CseError:
        return True
    return False


def _pooling_of(folder: Path) -> PoolerKind | None:
    for path in sorted(folder.glob("*_Pooling/config.json")):
        modes = read_json(path)
        named = modes.get("pooling_mode") or [k for k, on in modes.items() if k.startswith("pooling_mode_") and on]
        names = named if isinstance(named, list) else [named]
        if len(names) != 1 or not isinstance(names[0], str) or names[0] not in _POOLINGS:
            shown = " and ".join(map(str, names))[:80] or "nothing"
            raise CseError(
                f"backbone.name: {path} pools by {shown}, which is neither mean, "
                "cls nor last; choose one with pooler.kind"
            )
        if modes.get("include_prompt") is False:
            raise CseError(
                f"backbone.name: {path} leaves the task text out of the mean, which this project does not do"
            )
        return _POOLINGS[names[0]]
    return None
