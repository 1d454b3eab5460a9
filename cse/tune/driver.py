"""The driver of a sweep: start or resume Ray Tune and collect the results of the trials."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cse.data.store import TRAIN_FILE, PreparedData, source_file
from cse.data.tasks.kinds import content_of
from cse.data.tasks.store import open_dev
from cse.errors import CseError, full_disk_in
from cse.evaluation.dev_facts import SPEARMAN
from cse.files import fingerprint, naming
from cse.process import only_one
from cse.ray_session import in_words, listed_machines, ray_session, with_more
from cse.settings import Settings
from cse.settings.load import flatten
from cse.settings.spaces import Space, build_space, reached, settings_with
from cse.stages.common import MINED
from cse.tune.job import ATTEMPT, METRIC, Job, share_data
from cse.tune.outcome import Sweep, TrialRecord, read_sweep, trial_records, write_sweep, write_trials
from cse.tune.search import EVALUATIONS, domain, sampler, scheduler
from cse.tune.watch import Watch, callback

_NOT_THE_TRIALS = ("tune.concurrent", "tune.cpus_per_trial", "tune.gpus_per_trial", "train.eval_every")
_SYNC = 10  # seconds between copies of logs and search state into the sweep folder
_RESTARTS = 12  # maximum per trial in Ray; the trial counts lost workers itself and gives up earlier
_CUT_OFF = (EOFError, pickle.UnpicklingError)  # from reading Ray's state if a full disk or a kill cut its writing short


def run_sweep(settings: Settings, *, prepared: Path, corrupted: Path, scratch: Path, mined: Path = MINED) -> Sweep:
    """Search the space of group ``tune``; resume a killed sweep, or just read a finished one.

    Args:
        settings: base settings that each trial modifies.
        prepared: folder of the rows; its test sets are not opened.
        corrupted: folder of rows corrupted before training.
        scratch: parent of the sweep folder, which is named by a fingerprint of space, settings, data, models and code.
        mined: folder of the triplets mined from the rows; read if anything is mined.
    """
    if settings.tune.gpus_per_trial == 0 and settings.train.device == "auto":
        settings = settings_with(settings, {"train.device": "cpu"})  # Ray then assigns no GPU but does not hide it
    space = build_space(settings)
    _check_objective(settings, prepared)
    rows = [mined / TRAIN_FILE] if settings.mine.wanted else []
    folder = (scratch / "tune" / _name(space, settings, prepared, corrupted, rows)).resolve()
    busy = f"{folder}: another process is running this sweep; wait for it or stop it first"
    with only_one(folder / "driver.lock", busy):
        done = read_sweep(folder)
        if done is not None:
            return done
        data = PreparedData(prepared, *rows)
        job = Job(
            settings=settings,
            folder=folder,
            corrupted=corrupted.resolve(),
            threads=settings.tune.cpus_per_trial,
            evaluations=EVALUATIONS if space.search == "optuna" else None,
            ranges=tuple(part.key for part in space.dimensions if not part.values),
        )
        share_data(prepared, job.data, mined if rows else None)
        for attempt in folder.glob(f"trials/*/{ATTEMPT}*"):
            attempt.unlink()  # the previous driver ended them, so they do not count as lost
        with (
            naming(folder),
            _session(job) as dashboard,
            Watch(space, job, dashboard, _gpus(settings)) as watch,
        ):
            trials = _search(space, job, "tune", watch)
            records = trial_records(trials, space, job)
            if space.search == "two_step":
                _check_disk(records, job)
                scores = {r.config[space.keys[0]]: r.score for r in records if r.state == "finished"}
                if len(scores) < 2:
                    reason = next((record.reason for record in records if record.reason), "unknown reason")
                    raise CseError(f"tune: fewer than two trials of the coarse search succeeded: {reason}")
                fine = space.second_step(scores)  # type: ignore[arg-type]
                if fine is not None:
                    trials += _search(fine, job, "tune-fine", watch)
                    records = trial_records(trials, space, job)
        _check_disk(records, job)
        sweep = Sweep(
            folder, space.name, space.search, space.dimensions, tuple(records), *_dev_of_sweep(data, settings)
        )
        write_trials(sweep)
        write_sweep(sweep)
    return sweep


def _check_disk(records: Sequence[TrialRecord], job: Job) -> None:
    """Refuse to finish a sweep if trials failed on a full disk, so that the same command retries them."""
    lost = [record for record in records if record.state == "failed" and job.record_of(record.config) is None]
    full = [record for record in lost if full_disk_in(record.reason)]
    if full:
        raise CseError(
            f"tune: {len(full)} of {len(records)} trials found no space left in {job.folder}: free some and run the "
            "same command again to retry them"
        )


def _search(space: Space, job: Job, name: str, watch: Watch) -> list[Any]:
    """Run the trials of one search and return Ray Tune's trial objects."""
    from ray import tune
    from ray.tune import FailureConfig, RunConfig, SyncConfig, TuneConfig, Tuner

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the table shows the state of each trial
    wanted, path = job.settings.tune, job.folder / name
    trainable = tune.with_resources(
        tune.with_parameters(_trial, job=job),  # one copy for all trials
        {"cpu": wanted.cpus_per_trial, "gpu": _gpus(job.settings)},
    )
    param_space = {part.key: domain(part, grid=space.search != "optuna") for part in space.dimensions}
    tuner = None
    if Tuner.can_restore(str(path)):
        try:
            tuner = Tuner.restore(str(path), trainable=trainable, param_space=param_space, resume_errored=True)
            watch.say(f"resuming the sweep in {path}")
        except _CUT_OFF:
            watch.say(f"{path} is truncated; restarting the search, but keeping finished trials")
            shutil.rmtree(path)
    if tuner is None:
        optuna = space.search == "optuna"
        tuner = Tuner(
            trainable,
            param_space=param_space,
            tune_config=TuneConfig(
                metric=METRIC,
                mode="max",
                num_samples=wanted.trials if optuna else 1,
                search_alg=sampler(space, job) if optuna else None,
                scheduler=scheduler(job),
                max_concurrent_trials=wanted.concurrent,
                reuse_actors=True,  # the backbone stays loaded
                trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
            ),
            run_config=RunConfig(
                name=name,
                storage_path=str(job.folder),
                failure_config=FailureConfig(max_failures=_RESTARTS),
                callbacks=[callback()],
                sync_config=SyncConfig(sync_period=_SYNC),
                verbose=0,
            ),
        )
    try:
        grid = tuner.fit()
    except _CUT_OFF:
        raise CseError(
            f"{path}: Ray could not save the state of the trials, probably because the disk is full; free some space "
            "and run the same command again"
        ) from None
    return list(grid._experiment_analysis.trials)


def _trial(config: dict[str, Any], job: Job) -> None:
    """Run a trial in a worker; only workers import torch."""
    from ray import tune

    from cse.tune.trial import run_trial

    run_trial(config, job, tune.report)


def _check_machines(job: Job) -> None:
    """Refuse trials that no machine can hold."""
    import ray

    there, gpus = with_more(ray), _gpus(job.settings)
    if not any(machine.places(job.threads, gpus) for machine in there):
        raise CseError(
            f"tune.cpus_per_trial: a trial takes {in_words(job.threads, gpus)} of one machine, and Ray has "
            f"{listed_machines(there)}"
        )


def _check_objective(settings: Settings, prepared: Path) -> None:
    if settings.train.parameters == "none":
        raise CseError("train.parameters: 'none' leaves nothing to search; choose prompts or full")
    objective = settings.objective.over(settings.data.more_terms)
    if not objective.comparing:
        raise CseError(
            f"tune: objective.{objective.first} compares no sentences, so dev pairs cannot tell good "
            "settings from bad ones"
        )
    if not _dev_of_sweep(PreparedData(prepared), settings)[0]:
        raise CseError("tune: no dev pairs to score trials on; set data.dev_path")


def _dev_of_sweep(data: PreparedData, settings: Settings) -> tuple[int, str]:
    """Return the number of dev pairs or of a dev task's items, and the measure."""
    from cse.evaluation.score import dev_measure  # imports what the driver does not need

    task = open_dev(data)
    if task is None:
        return 0, SPEARMAN
    return len(task), dev_measure(task, settings.train.dev_measure, "train.dev_measure")


def _gpus(settings: Settings) -> float:
    """Return the number of GPUs per trial."""
    import ray

    there = ray.cluster_resources().get("GPU", 0)
    wanted = settings.tune.gpus_per_trial
    if wanted is None:
        wanted = 1 if there and settings.train.device != "cpu" else 0
    if wanted > there:
        raise CseError(f"tune.gpus_per_trial: {wanted:g} GPUs per trial, but there are {there:g}; give fewer, or 0")
    if settings.train.device == "cuda" and wanted == 0:
        raise CseError(
            "tune.gpus_per_trial: train.device is cuda, but trials get no GPU; give at least a fraction of one"
        )
    return wanted


@contextmanager
def _session(job: Job) -> Iterator[str]:
    """Start Ray with its dashboard, and yield the dashboard's address."""
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Ctrl-C stops the sweep; the next run resumes it
    variables = {
        "OMP_NUM_THREADS": str(job.threads),
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # workers limit their own memory; a monitor kill would end the sweep
        "TUNE_FUNCTION_THREAD_TIMEOUT_S": "60",  # a stopped trial's thread ends at its next report
    }
    os.environ |= variables
    if job.settings.train.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # for the workers only
    with ray_session(dashboard=True, variables=variables) as ray:
        _check_machines(job)
        yield ray._private.worker.get_dashboard_url() or ""


def _name(space: Space, settings: Settings, prepared: Path, corrupted: Path, rows: Sequence[Path] = ()) -> str:
    """Return a name for the sweep folder that changes with anything that could change a trial's score."""
    values = flatten(settings.model_dump(mode="json"))
    others = ("data.", "evaluation.", "export.", "promotion.")
    around = {
        key: value
        for key, value in values.items()
        if key not in space.keys and key not in _NOT_THE_TRIALS and not key.startswith(others)
    }
    if settings.data.more:
        around["data.more"] = settings.data.more_in_training
    dev = open_dev(PreparedData(prepared))
    more = [prepared / source_file(source.name) for source in settings.data.more]
    data = [prepared / TRAIN_FILE, *more, *rows, *sorted(corrupted.glob("*.npy"))]
    facts: dict[str, Any] = {"space": [str(part) for part in space.dimensions], "around": around}
    facts |= {"depends": _depends(space, settings), "dev": None if dev is None else [dev.name, content_of(dev)]}
    return f"{space.name}-{fingerprint(facts, data)[:8]}"


def _depends(space: Space, settings: Settings) -> list[str]:
    """Return a hash of what trials depend on beside settings and rows, for each combination of models."""
    from cse.training.ready import depends_on  # imports torch, which is slow

    return sorted({fingerprint(depends_on(tried)) for tried in (settings, *reached(space, settings))})
