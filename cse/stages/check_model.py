"""Refuse what cannot be a model before torch is loaded, which takes seconds."""

from __future__ import annotations

from pathlib import Path

from cse.errors import CseError, nearest
from cse.model.named import CONFIG_FILE, is_word_file, means_folder
from cse.runtime.bank import domain_of
from cse.runtime.bundle import MANIFEST
from cse.runtime.opening import refuse_whole_bank


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
