"""Who watches a training: the terminal, DVC's CSV files, TensorBoard, and what ``CSE_OBSERVERS`` adds."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click

from cse.errors import CseError, nearest
from cse.stages.training import Training, groups_of
from cse.training.mlflow_run import MlflowRun
from cse.training.observers import CsvLog, Observer, Observers, ProgressBar, TensorBoard

OBSERVERS_VARIABLE = "CSE_OBSERVERS"  # a variable, not a setting: it changes nothing in the result
KNOWN = ("mlflow",)


def watchers(training: Training) -> Observers:
    """Return the observers of a training; curves for TensorBoard go beside the folders of saved states."""
    folder, measure = training.folder.path, training.measure
    added: list[Observer] = []
    for name in filter(None, map(str.strip, os.environ.get(OBSERVERS_VARIABLE, "").split(","))):
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise CseError(f"{OBSERVERS_VARIABLE}: {name!r} is unknown; it may be {known}{nearest(name, KNOWN)}")
        added.append(MlflowRun(folder, groups_of(training.settings), measure))
    # the added ones first: they may be refused before the others have begun
    usual: list[Observer] = [ProgressBar(measure=measure), CsvLog(folder / "plots", measure)]
    if find_spec("tensorboard"):
        usual.append(TensorBoard(folder.parents[1] / "tensorboard" / folder.name, measure))
    else:
        click.echo("no curves for TensorBoard: pip install 'cse[boards]'", err=True)
    return Observers([*added, *usual])
