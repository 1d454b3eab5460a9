"""Open whatever a user names as a model: checkpoint, ONNX bundle, bare backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from cse.data.scored import ScoredPairs
from cse.data.suite import SuiteData
from cse.errors import CseError, nearest
from cse.evaluation.linear import FAST, FULL
from cse.evaluation.sts import StsResults, evaluate_sts
from cse.evaluation.suite import SuiteResults, evaluate_suite
from cse.evaluation.vectors import Encoder
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


def evaluate_models_fully(
    names: list[str], data: SuiteData, *, device: str, batch_size: int, progress: bool, fast: bool
) -> dict[str, SuiteResults]:
    """Take every measure of models that a user named, one after the other."""
    results = {}
    for name in names:
        encoder = open_model(name, device=device)
        click.echo(f"measuring {name}", err=True)
        with _ClassifierBar(progress) as bar:
            results[name] = evaluate_suite(
                encoder,
                data,
                batch_size=batch_size,
                progress=progress,
                classifier=FAST if fast else FULL,
                device=choose_device(device),
                advance=bar.advance,
            )
    return results


class _ClassifierBar:
    """A progress bar for each transfer task."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.bar: Any = None
        self.task = ""

    def __enter__(self) -> _ClassifierBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, task: str, ended: int, total: int) -> None:
        """Note that some classifiers of a task have ended."""
        if task != self.task:
            self.__exit__()
            self.bar = tqdm(total=total, desc=task, unit="fold", disable=not self.shown)
            self.task = task
        self.bar.update(ended)
