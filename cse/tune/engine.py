"""Trials on Ray Tune: how they are drawn, run, stopped early and resumed, and what is said meanwhile.

To be imported in a session of Ray: the variables that it sets are read by the import.
"""

from __future__ import annotations

import logging
import pickle
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import optuna
import ray
from optuna.samplers import TPESampler
from ray import tune
from ray.tune import FailureConfig, RunConfig, SyncConfig, TuneConfig, Tuner
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from cse.errors import CseError
from cse.ray_session import WAIT_SECONDS, free_in_words, in_words, listed_machines, with_more
from cse.settings.load import flatten
from cse.tune.outcome import STOPPED, TrialRecord
from cse.tune.spaces import SEED, Dimension, Space
from cse.tune.trial import EVALUATIONS, LISTED, METRIC, SETTING, WORST, Job, run_on_ray

_SYNC = 10  # seconds between copies of logs and search state into the sweep folder
_RESTARTS = 1  # of a trial whose worker was lost
_CUT_OFF = (EOFError, pickle.UnpicklingError)  # from reading Ray's state if a full disk or a kill cut its writing short
_STARTUP = 4  # random trials before TPE starts


def run_list(job: Job, name: str, wanted: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Run trials of a list, and return of each what Ray Tune knows of it."""
    entries = [{SETTING: trial.name, **trial.config} for trial in wanted]
    return _fit(job, name, len(entries), {LISTED: tune.grid_search(entries)})


def search(job: Job, space: Space) -> list[TrialRecord]:
    """Let Optuna draw the trials of a space, and stop early those that fall behind.

    TPE first tries the current settings if they lie in the space. ASHA goes by the percentage done, since steps of
    different batch sizes are not comparable.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    count, now = job.settings.tune.trials, flatten(job.settings.model_dump(mode="json"))
    start = {part.key: now[part.key] for part in space.dimensions if part.holds(now[part.key])}
    sampler = TPESampler(
        seed=job.settings.train.seed,
        n_startup_trials=min(_STARTUP, max(count // 3, 1)),
        multivariate=True,
        constant_liar=True,  # trials run at the same time
    )
    return _fit(
        job,
        "tune",
        count,
        {part.key: _domain(part) for part in space.dimensions},
        num_samples=count,
        search_alg=OptunaSearch(
            sampler=sampler, points_to_evaluate=[start] if len(start) == len(space.dimensions) else None
        ),
        scheduler=ASHAScheduler(time_attr="percent", max_t=101, grace_period=100 // EVALUATIONS, reduction_factor=2),
    )


def _domain(part: Dimension) -> Any:
    """Return a dimension for Ray Tune to sample from."""
    if part.values:
        return tune.choice(list(part.values))
    if isinstance(part.low, int) and isinstance(part.high, int):
        return (tune.lograndint if part.log else tune.randint)(part.low, part.high + 1)
    return (tune.loguniform if part.log else tune.uniform)(part.low, part.high)


def _ended(wanted: TrialRecord, trial: Trial) -> TrialRecord:
    """Return how a trial ended: stopped, or its worker was lost, and why."""
    last, lost = trial.last_result or {}, trial.status != "TERMINATED"
    seconds, percent = round(float(last.get("time_total_s", 0.0)), 1), int(last.get("percent", 0))
    known = replace(wanted, score=last.get(METRIC), percent=percent, seconds=seconds)
    if not lost:
        return replace(known, state=STOPPED)
    path = trial.error_file
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and Path(path).is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    causes = [line for line in said if "Error" in line or "died" in line]
    return replace(known, reason=(causes or said or ["it did not end; the sweep was stopped"])[-1][:300])


def _fit(job: Job, name: str, count: int, param_space: dict[str, Any], **searching: Any) -> list[TrialRecord]:
    """Run trials; a search that was killed goes on.

    Args:
        name: of the folder with Ray Tune's logs.
        searching: how trials are drawn and stopped; nothing for a list.
    """
    path = job.folder / name
    gpus = _gpus_of_a_trial(job)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the lines say what became of each trial
    click.echo(f"{count} trials in {job.folder}", err=True)
    if dashboard := ray._private.worker.get_dashboard_url():
        click.echo(f"dashboard: http://{dashboard} (log in with the token from `ray get-auth-token`)", err=True)
    click.echo(f"TensorBoard: tensorboard --logdir {job.folder}", err=True)
    trainable = tune.with_resources(
        tune.with_parameters(run_on_ray, job=job),  # one copy for all trials
        {"cpu": job.threads, "gpu": gpus},
    )
    tuner = _restored(path, trainable, param_space) if searching else None
    tuner = tuner or Tuner(
        trainable,
        param_space=param_space,
        tune_config=TuneConfig(
            metric=METRIC,
            mode="max",
            max_concurrent_trials=job.settings.tune.concurrent,
            reuse_actors=True,  # the backbone stays loaded
            trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
            **searching,
        ),
        run_config=RunConfig(
            name=name,
            storage_path=str(job.folder),
            failure_config=FailureConfig(max_failures=_RESTARTS),
            callbacks=[_Lines(job, count, in_words(job.threads, gpus))],
            sync_config=SyncConfig(sync_period=_SYNC),
            verbose=0,
        ),
    )
    try:
        ended: list[Trial] = tuner.fit()._experiment_analysis.trials
    except _CUT_OFF:
        raise CseError(
            f"{path}: Ray could not save the state of the trials, probably because the disk is full; free some "
            "space and run the same command again"
        ) from None
    return [_ended(job.wanted(number, trial.config), trial) for number, trial in enumerate(ended, start=1)]


def _restored(path: Path, trainable: Any, param_space: dict[str, Any]) -> Tuner | None:
    if not Tuner.can_restore(str(path)):
        return None
    try:
        tuner = Tuner.restore(str(path), trainable=trainable, param_space=param_space, resume_errored=True)
    except _CUT_OFF:
        click.echo(f"{path} is truncated; restarting the search, but keeping finished trials", err=True)
        shutil.rmtree(path)
        return None
    click.echo(f"resuming the sweep in {path}", err=True)
    return tuner


def _gpus_of_a_trial(job: Job) -> float:
    """Return how many GPUs a trial takes, or a share of one; refuse trials that no machine can hold."""
    settings, there = job.settings, ray.cluster_resources().get("GPU", 0)
    gpus = settings.tune.gpus_per_trial
    if gpus is None:
        gpus = 1 if there and settings.train.device != "cpu" else 0
    if gpus > there:
        raise CseError(f"tune.gpus_per_trial: {gpus:g} GPUs per trial, but there are {there:g}; give fewer, or 0")
    if settings.train.device == "cuda" and gpus == 0:
        raise CseError(
            "tune.gpus_per_trial: train.device is cuda, but trials get no GPU; give at least a fraction of one"
        )
    machines = with_more(ray)
    if not any(machine.places(job.threads, gpus) for machine in machines):
        raise CseError(
            f"tune.cpus_per_trial: a trial takes {in_words(job.threads, gpus)} of one machine, and Ray has "
            f"{listed_machines(machines)}"
        )
    return gpus


class _Lines(tune.Callback):
    """Says what becomes of each trial, and what they wait for if none runs.

    Args:
        wanted: what each takes of a machine, in words.
    """

    def __init__(self, job: Job, count: int, wanted: str) -> None:
        self.job, self.count, self.wanted = job, count, wanted
        self.ended, self.ran = 0, 0.0

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        now, states = time.monotonic(), {trial.status for trial in trials}
        if not self.ran or "PENDING" not in states or "RUNNING" in states:
            self.ran = now
        elif now - self.ran >= WAIT_SECONDS:
            self.ran = now
            click.echo(
                f"tune: no trial runs; each waits for {self.wanted} of one machine; {free_in_words(ray)}", err=True
            )

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._say(trial, "running")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        last = trial.last_result or {}
        percent = last.get("percent", 0)
        state = "failed" if last.get(METRIC) == WORST else "finished" if percent == 100 else "stopped"
        told = METRIC in last and state != "failed"
        self._say(trial, state, f": dev {last[METRIC]:.2f} ({percent} %)" if told else "")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._say(trial, "failed")

    def _say(self, trial: Trial, state: str, result: str = "") -> None:
        one = self.job.wanted(0, trial.config)
        called = f"{one.name}, seed {one.seed}" if SEED in one.config else one.name
        self.ended += state != "running"
        click.echo(
            f"{state}, {called}{result}" + (f"; {self.ended} of {self.count}" if state != "running" else ""), err=True
        )
