"""Observers of a run: progress on the terminal, TensorBoard, the CSV files that DVC plots, and MLflow."""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import click
import torch
from tqdm.auto import tqdm

from cse.errors import CseError, Interrupted, error_line, nearest
from cse.evaluation.dev_facts import SPEARMAN, DevScore, dev_column
from cse.settings.load import flatten


@dataclass(frozen=True)
class StepRecord:
    """One step as observers see it.

    Attributes:
        terms: loss terms by name, NaN if the batch's source does without, and their weighted sum as ``loss``.
        sentences_per_second: rows of all views; ``tokens_per_second``: real tokens, without padding and prompt.
        dev_score: best score on the dev pairs or dev task so far, times 100, or None.
    """

    step: int
    steps: int
    terms: Mapping[str, float]
    learning_rate: float
    sentences_per_second: float
    tokens_per_second: float
    dev_score: float | None

    @property
    def known(self) -> dict[str, float]:
        """The terms that the batch has."""
        return {name: value for name, value in self.terms.items() if not math.isnan(value)}

    @property
    def scalars(self) -> dict[str, float]:
        """Known terms, learning rate and speed, by the names that they have on a board."""
        return {f"loss/{name}": value for name, value in self.known.items()} | {
            "learning_rate": self.learning_rate,
            "speed/sentences_per_second": self.sentences_per_second,
            "speed/tokens_per_second": self.tokens_per_second,
        }


class Observer:
    """Watches a run without changing it: as it is, several observers as one; one of a kind says what it does then."""

    several: Sequence[Observer] = ()

    def __init__(self, *several: Observer) -> None:
        self.several = several

    def start(self, done: int, steps: int) -> None:
        """The run starts, or resumes after ``done`` of ``steps`` updates."""
        for observer in self.several:
            observer.start(done, steps)

    def step(self, record: StepRecord) -> None:
        """Some updates ran; the record holds the values of the last."""
        for observer in self.several:
            observer.step(record)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """The dev pairs or dev task were scored (times 100) after ``step`` updates; 0 is before the first."""
        for observer in self.several:
            observer.evaluated(step, score, best)

    def close(self) -> None:
        """The run finished or was stopped."""
        for observer in self.several:
            observer.close()


class ProgressBar(Observer):
    """A bar on a terminal, a plain line every few seconds in a log file."""

    seconds = 10.0  # between lines

    def __init__(self, stream: TextIO | None = None, measure: str = SPEARMAN) -> None:
        self.stream, self.measure = stream or sys.stderr, measure
        self.bar: Any = None
        self.started = self.last_line = 0.0
        self.done_before = 0

    def start(self, done: int, steps: int) -> None:
        self.started, self.done_before = time.monotonic(), done
        if self.stream.isatty():
            self.bar = tqdm(total=steps, initial=done, desc="train", unit="step", file=self.stream, dynamic_ncols=True)
        if done:
            self._say(f"resuming after step {done} of {steps}")

    def step(self, record: StepRecord) -> None:
        text = " ".join(f"{name} {value:.4f}" for name, value in record.known.items())
        text += f" | lr {record.learning_rate:.2e} | {record.sentences_per_second:.0f} sentences/s"
        text += f" {record.tokens_per_second:.0f} tokens/s" + _memory()
        if record.dev_score is not None:
            text += f" | dev {record.dev_score:.2f}"
        if self.bar is not None:
            self.bar.set_postfix_str(text, refresh=False)
            self.bar.update(record.step - self.bar.n)
            return
        now = time.monotonic()
        if now - self.last_line >= self.seconds or record.step == record.steps:
            self.last_line = now
            rate = (now - self.started) / max(record.step - self.done_before, 1)
            left = tqdm.format_interval(rate * (record.steps - record.step)).removeprefix("0")
            share = 100 * record.step / record.steps
            self._say(f"step {record.step}/{record.steps} ({share:.0f} %) | {text} | {left} left")

    def evaluated(self, step: int, score: float, best: bool) -> None:
        when = f"step {step}" if step else "before training"
        if not step:  # the time left is that of steps
            self.started = time.monotonic()
            if self.bar is not None:
                self.bar.unpause()
        self._say(f"{when}: {DevScore(score, self.measure)}{' (best so far)' if best and step else ''}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def _say(self, line: str) -> None:
        tqdm.write(line, file=self.stream)
        self.stream.flush()


class CsvLog(Observer):
    """Write ``train.csv`` and ``dev.csv`` for ``dvc plots``, without times so that equal runs give equal bytes."""

    def __init__(self, folder: Path, measure: str = SPEARMAN) -> None:
        self.folder = folder
        self.column = dev_column(measure)

    def start(self, done: int, steps: int) -> None:
        """Drop the rows that a killed run wrote after its last saved state."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob("*.csv"):
            with path.open(encoding="utf-8", newline="") as stream:
                header, *rows = list(csv.reader(stream)) or [[]]
            kept = [row for row in rows if done and len(row) == len(header) and int(row[0]) <= done]
            with path.open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows([header, *kept] if kept else [])

    def step(self, record: StepRecord) -> None:
        terms = {name: "" if math.isnan(value) else f"{value:.6g}" for name, value in record.terms.items()}
        self._append("train.csv", {"step": record.step, **terms, "learning_rate": f"{record.learning_rate:.6g}"})

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self._append("dev.csv", {"step": step, self.column: f"{score:.4f}"})

    def _append(self, name: str, values: Mapping[str, Any]) -> None:
        path = self.folder / name
        new = not path.exists() or path.stat().st_size == 0
        with path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if new:
                writer.writerow(values)
            writer.writerow(values.values())


class TensorBoard(Observer):
    """Scalars for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, measure: str = SPEARMAN) -> None:
        self.folder = folder
        self.tag = f"dev/{dev_column(measure)}"
        self.writer: Any = None

    def start(self, done: int, steps: int) -> None:
        """Open the log and hide a killed run's steps after ``done``."""
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder), purge_step=done + 1 if done else 0)

    def step(self, record: StepRecord) -> None:
        for name, value in record.scalars.items():
            self.writer.add_scalar(name, value, record.step)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self.writer.add_scalar(self.tag, score, step)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _memory() -> str:
    """Return the most memory so far, where this process trains on a GPU."""
    return f" | {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if torch.cuda.is_initialized() else ""


OBSERVERS_VARIABLE = "CSE_OBSERVERS"  # a variable, not a setting: it changes nothing in the result
MLFLOW = "mlflow"
RUN_FILE = "mlflow.txt"
# the client's own defaults hold a training up for minutes where the server is away
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MlflowRun(Observer):
    """Settings, loss terms, speed and dev scores of a training as a run of MLflow.

    MLflow's own variables say where: ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME`` (default ``cse``),
    ``MLFLOW_RUN_NAME``. A server that goes away during the training is reported once and does not stop it.

    Args:
        folder: the training's folder; keeps the id of the run, so that a resumed training goes on with it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], measure: str = SPEARMAN) -> None:
        self.tag = f"dev/{dev_column(measure)}"
        self.folder = folder
        self.settings = settings
        self.client: Any = None
        self.run = ""
        self.lost = False

    def start(self, done: int, steps: int) -> None:
        """Open the run, or the one that a killed training began."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ModuleNotFoundError:
            raise CseError("CSE_OBSERVERS: mlflow is not installed; run `pip install 'cse[mlflow]'`") from None
        place = self.folder / RUN_FILE
        begun = place.read_text(encoding="utf-8") if place.is_file() else ""
        try:
            self.client = MlflowClient()
            if begun:
                with suppress(MlflowException):  # the run is there no more
                    self.client.update_run(begun, status="RUNNING")
                    self.run = begun
            self.run = self.run or self._new(place)
        except MlflowException as error:
            raise CseError(f"CSE_OBSERVERS: mlflow: {error_line(error)[:200]}; check MLFLOW_TRACKING_URI") from None

    def step(self, record: StepRecord) -> None:
        self._log(record.scalars, record.step)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        self._log({self.tag: score} | ({"dev/best": score} if best else {}), step)

    def close(self) -> None:
        """End the run: finished, killed by a signal, or failed."""
        if not self.run:
            return
        error = sys.exc_info()[1]  # the loop closes its observers while an error is on its way out
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, Interrupted) else "FAILED"
        self._unless_lost(lambda: self.client.set_terminated(self.run, status))

    def _new(self, place: Path) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "cse")
        found = self.client.get_experiment_by_name(name)
        experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        run = str(self.client.create_run(experiment, run_name=os.environ.get("MLFLOW_RUN_NAME")).info.run_id)
        params = [Param(key, str(value)) for key, value in flatten(self.settings).items()]
        self.client.log_batch(run, params=params)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(run, encoding="utf-8")
        return run

    def _log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._unless_lost(lambda: self.client.log_batch(self.run, metrics=metrics))

    def _unless_lost(self, call: Callable[[], object]) -> None:
        """Send something; a server that is away is reported once, and nothing more is sent."""
        from mlflow.exceptions import MlflowException

        if self.lost:
            return
        try:
            call()
        except MlflowException as error:
            self.lost = True
            tqdm.write(f"mlflow: {error_line(error)[:200]}; the training goes on without it", file=sys.stderr)


def watchers(folder: Path, settings: Mapping[str, Any], measure: str) -> Observer:
    """Return the observers of a run in this folder; curves for TensorBoard go beside the folders of saved states."""
    wanted = os.environ.get(OBSERVERS_VARIABLE, "")
    if wanted not in ("", MLFLOW):
        raise CseError(f"{OBSERVERS_VARIABLE}: {wanted!r} is unknown; it may be {MLFLOW}{nearest(wanted, [MLFLOW])}")
    # MLflow first: it may be refused before the others have begun
    found: list[Observer] = [MlflowRun(folder, settings, measure)] if wanted else []
    found += [ProgressBar(measure=measure), CsvLog(folder / "plots", measure)]
    if find_spec("tensorboard"):
        found.append(TensorBoard(folder.parents[1] / "tensorboard" / folder.name, measure))
    else:
        click.echo("no curves for TensorBoard: pip install 'cse[boards]'", err=True)
    return Observer(*found)
