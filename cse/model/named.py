"""What a name that a user gives can mean, and what cannot be a model: told without torch, which takes seconds."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError, nearest
from cse.runtime.bank import domain_of, refuse_whole_bank
from cse.runtime.bundle import MANIFEST

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
CONFIG_FILE = "checkpoint.json"
_WORD_FILES = (".txt", ".vec")


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


def check_model(path_or_name: str) -> None:
    """Refuse paths that cannot be a model."""
    folder = Path(path_or_name)
    if domain_of(path_or_name) is not None:
        return
    refuse_whole_bank(folder)
    if folder.is_file() and not is_word_file(folder):
        raise CseError(f"{folder}: a file; name the folder of a checkpoint, bundle or backbone")
    if not folder.exists() and means_folder(path_or_name):
        raise CseError(f"{path_or_name}: no such folder{nearest(path_or_name, map(str, folder.parent.glob('*/')))}")
    if folder.is_dir() and not any((folder / name).is_file() for name in (MANIFEST, CONFIG_FILE, "config.json")):
        inside = [found.parent for name in (MANIFEST, CONFIG_FILE) for found in sorted(folder.glob(f"*/{name}"))[:1]]
        hint = f"; did you mean {inside[0]}?" if inside else "; is it a model folder?"
        raise CseError(f"{folder}: contains no {CONFIG_FILE}, {MANIFEST} or config.json{hint}")
