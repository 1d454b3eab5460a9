"""An observer that writes a training to MLflow, as one run that a resumed training goes on with."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from cse.errors import CseError, Interrupted
from cse.evaluation.dev_facts import SPEARMAN, dev_column
from cse.training.observers import Observer, StepRecord

RUN_FILE = "mlflow.txt"
# the client's own defaults hold a training up for minutes where the server is away
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_AT_ONCE = 100  # parameters in one request, MLflow's limit


class MlflowRun(Observer):
    """Settings, loss terms, speed and dev scores of a training as a run of MLflow.

    MLflow's own variables say where: ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME`` (default ``cse``),
    ``MLFLOW_RUN_NAME``. A server that goes away during the training is reported once and does not stop it.

    Args:
        folder: the training's folder; keeps the id of the run, so that a resumed training goes on with it.
        settings: nested settings of the training, logged as parameters such as ``prompt.length``.
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
        try:
            self.client = MlflowClient()
            self.run = self._begun() or self._new()
        except MlflowException as error:
            raise CseError(f"CSE_OBSERVERS: mlflow: {_first_line(error)}; check MLFLOW_TRACKING_URI") from None

    def step(self, record: StepRecord) -> None:
        """Log the loss terms, the learning rate and the speed."""
        values = {f"loss/{name}": value for name, value in record.known.items()}
        values |= {
            "learning_rate": record.learning_rate,
            "speed/sentences_per_second": record.sentences_per_second,
            "speed/tokens_per_second": record.tokens_per_second,
        }
        self._log(values, record.step)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Log the dev score, and the best one so far."""
        self._log({self.tag: score} | ({"dev/best": score} if best else {}), step)

    def close(self) -> None:
        """End the run: finished, killed by a signal, or failed."""
        if not self.run:
            return
        error = sys.exc_info()[1]  # the loop closes its observers while an error is on its way out
        status = "FINISHED" if error is None else "KILLED" if isinstance(error, Interrupted) else "FAILED"
        self._unless_lost(lambda: self.client.set_terminated(self.run, status))

    def _begun(self) -> str:
        """Return the run that a killed training began, or an empty string if there is none, or none any more."""
        from mlflow.exceptions import MlflowException

        place = self.folder / RUN_FILE
        if not place.is_file():
            return ""
        run = place.read_text(encoding="utf-8")
        try:
            self.client.update_run(run, status="RUNNING")
        except MlflowException:
            return ""
        return run

    def _new(self) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "cse")
        found = self.client.get_experiment_by_name(name)
        experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        run = str(self.client.create_run(experiment, run_name=os.environ.get("MLFLOW_RUN_NAME")).info.run_id)
        params = [Param(key, str(value)) for key, value in _flat(self.settings)]
        for first in range(0, len(params), _AT_ONCE):
            self.client.log_batch(run, params=params[first : first + _AT_ONCE])
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / RUN_FILE).write_text(run, encoding="utf-8")
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
            tqdm.write(f"mlflow: {_first_line(error)}; the training goes on without it", file=sys.stderr)


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
