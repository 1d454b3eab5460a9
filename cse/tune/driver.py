"""The driver of a sweep: list the trials, or let Optuna draw them; Ray Tune runs them, the ledger keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from cse.data.store import TRAIN_FILE, PreparedData, source_file
from cse.data.tasks.kinds import content_of
from cse.data.tasks.store import open_dev
from cse.errors import CseError, full_disk_in
from cse.evaluation.score import dev_measure
from cse.files import fingerprint, naming
from cse.ledger import Ledger
from cse.process import only_one
from cse.ray_session import ray_session
from cse.settings import Settings
from cse.settings.load import flatten, settings_with
from cse.training.ready import depends_on
from cse.tune.outcome import FAILED, FINISHED, Sweep, TrialRecord, write_trials
from cse.tune.spaces import SEED, Setting, Space, build_space, check_seeds, only, reached
from cse.tune.trial import EVALUATIONS, METRIC, SETTING, Job, share_data

_NOT_THE_TRIALS = (
    *("tune.concurrent", "tune.cpus_per_trial", "tune.gpus_per_trial", "train.workers", "train.save_seconds"),
)


def run_sweep(
    settings: Settings, prepared: Path, *, scratch: Path, names: Sequence[str] = (), seeds: int = 1, confirm: int = 0
) -> tuple[Sweep, Job]:
    """Search the space of group ``tune``; resume a killed sweep, or just read a finished one.

    Args:
        settings: base settings that each trial modifies.
        prepared: folder of the rows; the test sets beside them are not opened.
        scratch: parent of the sweep folder, which is named by a fingerprint of space, settings, data, models and code.
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
    drawn = space.search == "optuna"
    job = Job(
        settings=settings,
        folder=(scratch / "tune" / _name(whole, settings, prepared)).resolve(),
        evaluations=EVALUATIONS if drawn else None,
        ranges=tuple(part.key for part in space.dimensions if not part.values),
    )
    with alone(job):
        share_data(prepared, job.data)
        if drawn:
            found = Ledger(job.folder, "delete it to search again").run("search", lambda: _search(space, job)).result
            records = [TrialRecord(**one) for one in found]
        else:
            records = train_all(job, space.grid(), 1 if confirm else seeds, "tune")
        sweep = Sweep(job.folder, space.keys, tuple(records), *measured)
        write_trials(sweep)
    return sweep, job


@contextmanager
def alone(job: Job) -> Iterator[None]:
    """Hold the lock of a sweep's folder."""
    busy = f"{job.folder}: another process is running this sweep; wait for it or stop it first"
    with only_one(job.folder / "driver.lock", busy), naming(job.folder):
        yield


@contextmanager
def _ray(job: Job) -> Iterator[None]:
    """Start Ray with its dashboard; ``cse.tune.engine`` is imported in the block."""
    variables = {
        "OMP_NUM_THREADS": str(job.threads),
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # workers limit their own memory; a monitor kill would end the sweep
        "TUNE_FUNCTION_THREAD_TIMEOUT_S": "60",  # a stopped trial's thread ends at its next report
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C stops the sweep; the next run resumes it
    }
    os.environ |= variables  # some count in this process
    if job.settings.train.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # for the workers only
    with ray_session(dashboard=True, variables=variables, preload="cse.tune.trial"):
        yield


def _search(space: Space, job: Job) -> list[dict[str, Any]]:
    with _ray(job):
        from cse.tune.engine import search

        return [asdict(trial) for trial in _recorded(job, search(job, space))]


def train_all(job: Job, settings: Sequence[Setting], seeds: int, name: str) -> list[TrialRecord]:
    """Train settings with several seeds, as far as that is not on record, and return the record of each training.

    Args:
        name: of the folder with Ray Tune's logs.
    """
    wanted = trials_of(job, settings, seeds)
    todo = [trial for trial in wanted if job.record_of(trial.config) is None]
    if not todo:
        return _recorded(job, wanted)
    if len(todo) < len(wanted):
        click.echo(f"tune: {len(wanted) - len(todo)} of {len(wanted)} trials are on record", err=True)
    with _ray(job):
        from cse.tune.engine import run_list

        ended = {trial.folder: trial for trial in run_list(job, name, todo)}
    return _recorded(job, [replace(ended.get(one.folder, one), number=one.number) for one in wanted])


def trials_of(job: Job, settings: Sequence[Setting], seeds: int) -> list[TrialRecord]:
    """Return the trials that are wanted: all settings with the first seed, then all with the next."""
    first = job.settings.train.seed
    entries = [
        {SETTING: one.name, SEED: seed, **one.values} for seed in range(first, first + seeds) for one in settings
    ]
    return [job.wanted(number, entry) for number, entry in enumerate(entries, start=1)]


def _recorded(job: Job, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return trials as the ledger has them; those that are not on record stay as they are.

    Raises:
        CseError: some found the disk full, so that the same command retries them.
    """
    found = []
    for trial in trials:
        if (record := job.record_of(trial.config)) is not None:
            trial = replace(trial, seconds=round(record.seconds, 1), reason=record.reason)
            if record.reason:
                trial = replace(trial, state=FAILED, score=None, percent=0)
            else:
                score, values = round(float(record.result[METRIC]), 4), record.result["values"]
                trial = replace(trial, state=FINISHED, score=score, percent=100, values=values)
        found.append(trial)
    full = [one for one in found if full_disk_in(one.reason) and job.record_of(one.config) is None]
    if full:
        raise CseError(
            f"tune: {len(full)} of {len(found)} trials found no space left in {job.folder}: free some and run the "
            "same command again to retry them"
        )
    return found


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
    return len(task), dev_measure(task, settings.train.dev_measure, "train.dev_measure")


def _name(space: Space, settings: Settings, prepared: Path) -> str:
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
    files = [TRAIN_FILE, *(source_file(source.name) for source in settings.data.more)]
    data = [prepared / name for name in files]
    facts = {
        "space": [str(part) for part in space.dimensions],  # a list of settings may grow
        "around": around,
        # models and code, for each combination that trials reach
        "depends": sorted({fingerprint(depends_on(tried)) for tried in (settings, *reached(space, settings))}),
        "dev": None if dev is None else [dev.name, content_of(dev)],
    }
    return f"{space.name}-{fingerprint(facts, data)[:8]}"
