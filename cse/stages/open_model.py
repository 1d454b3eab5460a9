"""Open whatever a user names as a model: checkpoint, ONNX bundle, bare backbone."""

from __future__ import annotations

from pathlib import Path

import click

from cse.data.scored import ScoredPairs
from cse.errors import CseError, nearest
from cse.evaluation.sts import Encoder, StsResults, evaluate_sts
from cse.model.backbone import means_folder
from cse.model.checkpoint import training_notes
from cse.model.encoder import SentenceEncoder
from cse.model.static_words import is_word_file
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.training.precision import choose_device


def open_model(path_or_name: str, *, device: str = "auto") -> Encoder:
    """Open a checkpoint or bundle folder, or a backbone by folder or hub id, for encoding.

    Args:
        path_or_name: what the user named.
        device: ``auto``, ``cpu`` or ``cuda``; for a bundle the execution provider.

    Raises:
        CseError: nothing usable there, or a GPU that was named and is not there.
    """
    folder = Path(path_or_name)
    if (folder / "bundle.json").is_file():
        return OnnxEncoder(folder, provider=device)
    if folder.is_file() and not is_word_file(folder):
        raise CseError(f"{folder}: a file; name the folder of a checkpoint, a bundle or a backbone")
    if not folder.exists() and means_folder(path_or_name):
        raise CseError(f"{path_or_name}: no such folder{nearest(path_or_name, map(str, folder.parent.glob('*/')))}")
    notes = training_notes(folder)
    if notes:
        click.echo(f"{folder}: {notes}", err=True)
    if folder.is_dir() and not any((folder / name).is_file() for name in ("checkpoint.json", "config.json")):
        raise CseError(f"{folder}: no checkpoint.json, bundle.json or config.json in it; is it a model's folder?")
    return SentenceEncoder.load(path_or_name).to(choose_device(device))


def evaluate_models(
    names: list[str], tasks: list[ScoredPairs], *, device: str, batch_size: int, progress: bool
) -> dict[str, StsResults]:
    """Score models that a user named, one after the other; each is a checkpoint, a bundle or a backbone."""
    return {name: evaluate_sts(open_model(name, device=device), tasks, batch_size, progress) for name in names}
