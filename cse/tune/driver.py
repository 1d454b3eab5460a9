"""The driver of a sweep: list the trials, or let Optuna draw them; Ray Tune runs them, the ledger keeps them."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cse.data.store import TRAIN_FILE, PreparedData, source_file
from cse.data.tasks.kinds import content_of
from cse.data.tasks.store import open_dev
from cse.errors import CseError, full_disk_in
from cse.files import fingerprint, naming
from cse.process import only_one
from cse.ray_session import in_words, listed_machines, ray_session, with_more
from cse.settings import Settings
from cse.settings.load import flatten, settings_with
from cse.stages.common import MINED
from cse.tune.job import ATTEMPT, METRIC, SETTING, Job, drawn_of, share_data
from cse.tune.outcome import FAILED, FINISHED, STOPPED, Sweep, TrialRecord, read_sweep, write_sweep
from cse.tune.spaces import (
    SEED,
    Dimension,
    Setting,
    Space,
    build_space,
    check_seeds,
    named,
    only,
    reached,
)
from cse.tune.watch import Watch, callback

_NOT_THE_TRIALS = (
    *("tune.concurrent", "tune.cpus_per_trial", "tune.gpus_per_trial", "train.workers", "train.save_seconds"),
)
_SYNC = 10  # seconds between copies of logs and search state into the sweep folder
_RESTARTS = 12  # maximum per trial in Ray; the trial counts lost workers itself and gives up earlier
_CUT_OFF = (EOFError, pickle.UnpicklingError)  # from reading Ray's state if a full disk or a kill cut its writing short
_STARTUP = 4  # random trials before TPE starts
EVALUATIONS = 4  # of an Optuna trial, evenly spaced; trials that fall behind stop there


@dataclass(frozen=True)
class Run:
    """A setting with a seed: a trial that is wanted.

    Attributes:
        config: what the trial changes; a seed stands in it only if it is not that of the base settings.
    """

    name: str
    seed: int
    config: dict[str, Any]


def runs_of(settings: Sequence[Setting], seeds: int, job: Job) -> list[Run]:
    """Return the trials of a list, all settings with the first seed before any with the next."""
    first = job.settings.train.seed
    found = []
    for seed in range(first, first + seeds):
        for setting in settings:
            own = {SEED: seed, **setting.values}
            found.append(Run(setting.name, own[SEED], job.config_of(own)))
    return found


def run_sweep(
    settings: Settings,
    *,
    prepared: Path,
    corrupted: Path,
    scratch: Path,
    mined: Path = MINED,
    names: Sequence[str] = (),
    seeds: int = 1,
    confirm: int = 0,
) -> tuple[Sweep, Job]:
    """Search the space of group ``tune``; resume a killed sweep, or just read a finished one.

    Args:
        settings: base settings that each trial modifies.
        prepared: folder of the rows; its test sets are not opened.
        corrupted: folder of rows corrupted before training.
        scratch: parent of the sweep folder, which is named by a fingerprint of space, settings, data, models and code.
        mined: folder of the triplets mined from the rows; read if anything is mined.
        names: of the space's named settings, to train these alone; none: all.
        seeds: that each setting is trained with, counted up from ``train.seed``.
        confirm: of how many settings the seeds are, once the search has ended (``cse.tune.confirm``); 0: of all.
    """
    if settings.tune.gpus_per_trial == 0 and settings.train.device == "auto":
        settings = settings_with(settings, {"train.device": "cpu"})  # Ray then assigns no GPU but does not hide it
    whole = build_space(settings)
    space = only(whole, names)
    check_seeds(space, settings, seeds, confirmed=confirm > 0)
    measured = _check_objective(settings, prepared, space)
    rows = [mined / TRAIN_FILE] if settings.mine.wanted else []
    folder = (scratch / "tune" / _name(whole, settings, prepared, corrupted, rows)).resolve()
    job = Job(
        settings=settings,
        folder=folder,
        corrupted=corrupted.resolve(),
        threads=settings.tune.cpus_per_trial,
        evaluations=EVALUATIONS if space.search == "optuna" else None,
        ranges=tuple(part.key for part in space.dimensions if not part.values),
    )
    with alone(job):
        done = read_sweep(folder) if space.search == "optuna" else None
        if done is not None:
            return done, job
        share_data(prepared, job.data, mined if rows else None)
        for attempt in folder.glob(f"trials/*/{ATTEMPT}*"):
            attempt.unlink()  # the previous driver ended them, so they do not count as lost
        if space.search == "optuna":
            records = _search(space, job)
        else:
            runs = runs_of(space.grid(), 1 if confirm else seeds, job)
            records = train_runs(job, runs, "tune")
            if space.search == "two_step":
                scores = {r.config[space.keys[0]]: r.score for r in records if r.state == FINISHED}
                if len(scores) < 2:
                    reason = next((record.reason for record in records if record.reason), "unknown reason")
                    raise CseError(f"tune: fewer than two trials of the coarse search succeeded: {reason}")
                fine = space.second_step(scores)  # type: ignore[arg-type]
                if fine is not None:
                    records = train_runs(job, [*runs, *runs_of(fine.grid(), 1, job)], "tune-fine")
        sweep = Sweep(folder, space.name, space.search, space.dimensions, tuple(records), *measured)
        write_sweep(sweep)
    return sweep, job


@contextmanager
def alone(job: Job) -> Iterator[None]:
    """Hold the lock of a sweep's folder."""
    busy = f"{job.folder}: another process is running this sweep; wait for it or stop it first"
    with only_one(job.folder / "driver.lock", busy), naming(job.folder):
        yield


def train_runs(job: Job, runs: Sequence[Run], name: str) -> list[TrialRecord]:
    """Train what is not on record of a list side by side, and return the record of each.

    Args:
        name: of the folder with Ray Tune's logs.
    """
    todo = [run for run in runs if job.record_of(run.config) is None]
    trials: list[Any] = []
    if todo:
        if len(todo) < len(runs):
            click.echo(f"tune: {len(runs) - len(todo)} of {len(runs)} trials are on record", err=True)
        entries = [{SETTING: run.name, **run.config} for run in todo]
        with _watched(job, len(todo)) as watch:
            trials = _fit(job, name, watch, {"run": _ray_tune().grid_search(entries)})
    return _records(job, runs, trials)


def _search(space: Space, job: Job) -> list[TrialRecord]:
    """Let Optuna draw the trials of a space, and stop early those that fall behind."""
    wanted = job.settings.tune
    with _watched(job, wanted.trials) as watch:
        dimensions = {part.key: _domain(part) for part in space.dimensions}
        trials = _fit(
            job,
            "tune",
            watch,
            dimensions,
            num_samples=wanted.trials,
            search_alg=_sampler(space, job),
            scheduler=_scheduler(),
        )
    configs = [job.config_of(drawn_of(trial.config)) for trial in trials]
    return _records(job, [Run(named(config), job.settings.train.seed, config) for config in configs], trials)


def _records(job: Job, runs: Sequence[Run], trials: Sequence[Any]) -> list[TrialRecord]:
    """Return the records of trials, from the ledger, or else from what Ray Tune knows of them.

    Raises:
        CseError: some found the disk full, so that the same command retries them.
    """
    by_folder = {job.folder_of(job.config_of(drawn_of(trial.config))): trial for trial in trials}
    found = [
        _record(job, number, run, by_folder.get(job.folder_of(run.config))) for number, run in enumerate(runs, start=1)
    ]
    _check_disk(found, job)
    return found


def _check_disk(records: Sequence[TrialRecord], job: Job) -> None:
    lost = [record for record in records if record.state == FAILED and job.record_of(record.config) is None]
    full = [record for record in lost if full_disk_in(record.reason)]
    if full:
        raise CseError(
            f"tune: {len(full)} of {len(records)} trials found no space left in {job.folder}: free some and run the "
            "same command again to retry them"
        )


def _record(job: Job, number: int, run: Run, trial: Any) -> TrialRecord:
    folder, record = str(job.folder_of(run.config)), job.record_of(run.config)
    known = TrialRecord(number, run.name, run.seed, FAILED, run.config, run.config, None, 0, folder=folder)
    if record is not None and record.reason:
        return replace(known, reason=record.reason)
    if record is not None:
        score, seconds = round(float(record.result[METRIC]), 4), round(record.seconds, 1)
        values = record.result["values"]
        return replace(known, state=FINISHED, values=values, score=score, percent=100, seconds=seconds)
    last: Mapping[str, Any] = trial.last_result or {}
    seconds, percent = round(float(last.get("time_total_s", 0.0)), 1), int(last.get("percent", 0))
    known = replace(known, score=last.get(METRIC), percent=percent, seconds=seconds)
    return replace(known, state=STOPPED) if trial.status == "TERMINATED" else replace(known, reason=_reason(trial))


def _reason(trial: Any) -> str:
    """Return one line on why a trial's worker was lost."""
    path = getattr(trial, "error_file", None)
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and Path(path).is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    known = [line for line in said if "Error" in line or "died" in line]
    return (known or said or ["it did not end; the sweep was stopped"])[-1][:300]


def _ray_tune() -> Any:
    from ray import tune

    return tune


def _fit(job: Job, name: str, watch: Watch, param_space: dict[str, Any], **search: Any) -> list[Any]:
    """Run trials and return Ray Tune's trial objects; a search that was killed goes on."""
    from ray.tune import FailureConfig, RunConfig, SyncConfig, TuneConfig, Tuner

    tune = _ray_tune()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the lines say what became of each trial
    path = job.folder / name
    trainable = tune.with_resources(
        tune.with_parameters(_trial, job=job),  # one copy for all trials
        {"cpu": job.threads, "gpu": watch.gpus},
    )
    tuner = None
    if search and Tuner.can_restore(str(path)):
        try:
            tuner = Tuner.restore(str(path), trainable=trainable, param_space=param_space, resume_errored=True)
            watch.say(f"resuming the sweep in {path}")
        except _CUT_OFF:
            watch.say(f"{path} is truncated; restarting the search, but keeping finished trials")
            shutil.rmtree(path)
    if tuner is None:
        tuner = Tuner(
            trainable,
            param_space=param_space,
            tune_config=TuneConfig(
                metric=METRIC,
                mode="max",
                max_concurrent_trials=job.settings.tune.concurrent,
                reuse_actors=True,  # the backbone stays loaded
                trial_dirname_creator=lambda trial: f"trial-{trial.trial_id}",
                **search,
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


def _domain(part: Dimension) -> Any:
    """Return a dimension for Ray Tune to sample from."""
    tune = _ray_tune()
    if part.values:
        return tune.choice(list(part.values))
    if part.whole:
        whole = tune.lograndint if part.log else tune.randint
        return whole(int(part.low), int(part.high) + 1)
    return (tune.loguniform if part.log else tune.uniform)(part.low, part.high)


def _sampler(space: Space, job: Job) -> Any:
    """Return Optuna's TPE sampler; it first tries the current settings if they lie in the space."""
    import optuna
    from optuna.samplers import TPESampler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    now = flatten(job.settings.model_dump(mode="json"))
    start = {part.key: now[part.key] for part in space.dimensions if part.holds(now[part.key])}
    sampler = TPESampler(
        seed=job.settings.train.seed,
        n_startup_trials=min(_STARTUP, max(job.settings.tune.trials // 3, 1)),
        multivariate=True,
        constant_liar=True,  # trials run at the same time
    )
    return OptunaSearch(sampler=sampler, points_to_evaluate=[start] if len(start) == len(space.dimensions) else None)


def _scheduler() -> Any:
    """Return an ASHA scheduler over percentage done, since steps of different batch sizes are not comparable."""
    from ray.tune.schedulers import ASHAScheduler

    return ASHAScheduler(time_attr="percent", max_t=101, grace_period=100 // EVALUATIONS, reduction_factor=2)


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


def _check_objective(settings: Settings, prepared: Path, space: Space) -> tuple[int, str]:
    """Return on how many dev pairs trials are scored, and by which measure; refuse what these cannot judge."""
    if settings.train.parameters == "none" and space.dimensions:
        raise CseError("train.parameters: 'none' leaves nothing to search; choose prompts or full")
    objective = settings.objective.over(settings.data.more_terms)
    if not objective.comparing:
        raise CseError(
            f"tune: objective.{objective.first} compares no sentences, so dev pairs cannot tell good "
            "settings from bad ones"
        )
    task = open_dev(PreparedData(prepared))
    if task is None or not len(task):
        raise CseError("tune: no dev pairs to score trials on; set data.dev_path")
    from cse.evaluation.score import dev_measure  # imports what the driver does not need

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
def _watched(job: Job, count: int) -> Iterator[Watch]:
    """Start Ray with its dashboard, and say where the trials can be watched."""
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
        watch, dashboard = Watch(job, count, _gpus(job.settings)), ray._private.worker.get_dashboard_url()
        watch.say(f"{count} trials in {job.folder}")
        if dashboard:
            watch.say(f"dashboard: http://{dashboard} (log in with the token from `ray get-auth-token`)")
        watch.say(f"TensorBoard: tensorboard --logdir {job.folder}")
        yield watch


def _name(space: Space, settings: Settings, prepared: Path, corrupted: Path, rows: Sequence[Path] = ()) -> str:
    """Return a name for the sweep folder that changes with anything that could change a trial's score."""
    values = flatten(settings.model_dump(mode="json"))
    others = ("data.", "evaluation.", "export.", "promotion.", "bank.")
    spaced = ("train.eval_every",) if space.search == "optuna" else ()  # a search spaces evaluations itself
    around = {
        key: value
        for key, value in values.items()
        if key not in (*space.keys, *_NOT_THE_TRIALS, *spaced) and not key.startswith(others)
    }
    if settings.data.more:
        around["data.more"] = settings.data.more_in_training
    dev = open_dev(PreparedData(prepared))
    more = [prepared / source_file(source.name) for source in settings.data.more]
    data = [prepared / TRAIN_FILE, *more, *rows, *sorted(corrupted.glob("*.npy"))]
    facts: dict[str, Any] = {"space": [str(part) for part in space.dimensions], "around": around}  # a list grows
    facts |= {"depends": _depends(space, settings), "dev": None if dev is None else [dev.name, content_of(dev)]}
    return f"{space.name}-{fingerprint(facts, data)[:8]}"


def _depends(space: Space, settings: Settings) -> list[str]:
    """Return a hash of what trials depend on beside settings and rows, for each combination of models."""
    from cse.training.ready import depends_on  # imports torch, which is slow

    return sorted({fingerprint(depends_on(tried)) for tried in (settings, *reached(space, settings))})
