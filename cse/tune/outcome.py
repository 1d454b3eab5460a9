"""Results of a sweep, read from its trials and written as JSON and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cse.bench.pacing import steps_of
from cse.errors import CseError
from cse.evaluation.dev_facts import SPEARMAN, dev_key
from cse.files import write_csv, write_json
from cse.outputs import publish_file
from cse.settings.presets import MACHINE_KEYS
from cse.settings.spaces import Dimension, Space
from cse.tune.job import METRIC, Job, read_curve

SWEEP, TRIALS = "sweep.json", "trials.csv"


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    Attributes:
        number: position in start order, from 1.
        state: ``finished``, ``stopped`` (fell behind) or ``failed``.
        values: all values that differ from the base settings, such as the spacing of evaluations.
        score: best dev score times 100, or None.
        curve: ``(percent, best dev score so far)``.
    """

    number: int
    state: str
    config: dict[str, Any]
    values: dict[str, Any]
    score: float | None
    percent: int
    seconds: float
    curve: list[tuple[int, float]]
    reason: str
    folder: str

    @property
    def label(self) -> str:
        """The values in one line, without the groups of their keys."""
        return ", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in self.config.items())


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        trials: trials in start order.
        dev_pairs: number of dev pairs, or items of the dev task, behind each score.
    """

    folder: Path
    space: str
    search: str
    dimensions: tuple[Dimension, ...]
    trials: tuple[TrialRecord, ...]
    dev_pairs: int
    measure: str = SPEARMAN

    @property
    def keys(self) -> tuple[str, ...]:
        """The searched keys."""
        return tuple(part.key for part in self.dimensions)

    @property
    def best(self) -> TrialRecord:
        """The finished trial with the best dev score; on ties, the earliest."""
        finished = [trial for trial in self.trials if trial.state == "finished"]
        if not finished:
            reasons = [trial.reason for trial in self.trials if trial.reason] or ["all were stopped"]
            raise CseError(f"tune: no trial succeeded ({reasons[0]}); {self.folder / TRIALS} lists them all")
        return max(finished, key=lambda trial: trial.score or -math.inf)

    @property
    def noise(self) -> float:
        """The standard error of the best score, in points."""
        return standard_error(self.best.score or 0.0, self.dev_pairs, self.measure)

    def within_noise(self, trial: TrialRecord) -> bool:
        """Return whether a finished trial is within noise of the best."""
        best = self.best
        finished = trial is not best and trial.state == "finished" and trial.score is not None
        return finished and (best.score or 0.0) - (trial.score or 0.0) <= self.noise

    @property
    def doubt(self) -> str:
        """A sentence on which trials the dev pairs cannot distinguish from the best."""
        others = [trial for trial in self.trials if trial.state == "finished" and trial is not self.best]
        alike = [trial for trial in others if self.within_noise(trial)]
        what = "pairs" if self.measure == SPEARMAN else "items"
        measured = f"{self.noise:.2f} points (a standard error over {self.dev_pairs:,} dev {what})"
        if not alike:
            return f"no other finished trial is within {measured} of the best"
        which = "1 other trial is" if len(alike) == 1 else f"{len(alike)} other trials are"
        numbers = ", ".join(str(trial.number) for trial in alike)
        return f"{which} within {measured} of the best, too close to tell apart: {numbers}"


_AS_JSON = TypeAdapter(Sweep)


def standard_error(score: float, pairs: int, measure: str = SPEARMAN) -> float:
    """Return the standard error of a Spearman correlation, both times 100; infinite for fewer than four pairs.

    Of another measure, return that of a share, ``sqrt(p (1 - p) / n)``: the most that a mean over items can have.

    Fisher's z of a Spearman correlation has the variance ``(1 + rho^2 / 2) / (n - 3)`` (Bonett and Wright 2000,
    Psychometrika 65(1)); its root times ``1 - rho^2``, the slope of ``tanh``, is the error of the correlation.
    Trials are scored on the same pairs, so their errors correlate and a difference is more certain than two separate
    scores.
    """
    if pairs < 4:
        return math.inf
    rho = score / 100
    if measure != SPEARMAN:
        return 100 * math.sqrt(max(rho * (1 - rho), 0.0) / pairs)
    return 100 * (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (pairs - 3))


def to_promote(values: Mapping[str, Any], searched: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a trial to write into the settings file, and those to leave out.

    Machine settings and the sweep's own budget (rows, evaluations) are left out unless they were searched.

    Args:
        values: values that differ from the settings file, by dotted key.
    """
    wanted = {key: value for key, value in values.items() if key in searched or not _is_budget(key)}
    return wanted, {key: value for key, value in values.items() if key not in wanted}


def _is_budget(key: str) -> bool:
    return key in (*MACHINE_KEYS, "train.eval_every", "data.max_rows") or key.startswith("tune.")


def trial_records(trials: Sequence[Any], space: Space, job: Job) -> list[TrialRecord]:
    """Return records of Ray Tune's trials."""
    return [_record(number, trial, space, job) for number, trial in enumerate(trials, start=1)]


def _record(number: int, trial: Any, space: Space, job: Job) -> TrialRecord:
    config = job.config_of({key: trial.config[key] for key in space.keys})
    folder = job.folder_of(config)
    last: Mapping[str, Any] = trial.last_result or {}
    curve = read_curve(folder, steps_of(job.settings_of(config), job.data))
    values, score, state, reason = dict(config), last.get(METRIC), "stopped", ""
    record = job.record_of(config)
    if record is not None and record.reason:
        score, state, reason, curve = None, "failed", record.reason, []
    elif record is not None:
        values, score, state = record.result["values"], record.result[METRIC], "finished"
    elif trial.status != "TERMINATED":
        state, reason = "failed", _reason(trial)
    return TrialRecord(
        number,
        state,
        config,
        values,
        None if score is None or not math.isfinite(score) else round(float(score), 4),
        int(last.get("percent", 0)),
        round(float(last.get("time_total_s", 0.0)), 1),
        curve,
        reason,
        str(folder),
    )


def _reason(trial: Any) -> str:
    """Return one line on why a trial's worker was lost."""
    path = getattr(trial, "error_file", None)
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and Path(path).is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    known = [line for line in said if "Error" in line or "died" in line]
    return (known or said or ["it did not end; the sweep was stopped"])[-1][:300]


def write_trials(sweep: Sweep) -> None:
    """Write ``trials.csv``, one line per trial."""
    facts = ("trial", "state", dev_key(sweep.measure), "within_noise", "percent", "seconds")
    rows = [
        [
            *(t.number, t.state, t.score, "yes" if sweep.within_noise(t) else "", t.percent, t.seconds),
            *(*t.config.values(), t.reason, t.folder),
        ]
        for t in sweep.trials
    ]
    with publish_file(sweep.folder / TRIALS) as target:
        write_csv(target, [*facts, *sweep.keys, "reason", "folder"], rows)


def write_sweep(sweep: Sweep) -> None:
    """Write ``sweep.json``, which marks the sweep as finished; call this last."""
    with publish_file(sweep.folder / SWEEP) as target:
        write_json(target, _AS_JSON.dump_python(sweep, mode="json", exclude={"folder"}))


def describe(sweep: Sweep) -> str:
    """Return a table of the trials, best first, a line with the best values, and a note on noise."""
    from cse.evaluation.table import format_rows

    best = sweep.best
    order = sorted(sweep.trials, key=lambda trial: (trial.state != "finished", -(trial.score or -math.inf)))
    rows = [["trial", "dev", "done", *sweep.keys, "state"]]
    for trial in order:
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        state = trial.state + (f": {trial.reason}" if trial.reason else "")
        state += ", within noise of the best" if sweep.within_noise(trial) else ""
        rows.append([str(trial.number), score, f"{trial.percent} %", *map(_short, trial.config.values()), state])
    values = ", ".join(f"{key} {value}" for key, value in best.values.items())
    return f"{format_rows(rows, 'text')}\nbest: trial {best.number}, dev {best.score:.2f} with {values}\n{sweep.doubt}"


def read_sweep(folder: Path) -> Sweep | None:
    """Return a finished sweep, or None."""
    path = folder / SWEEP
    if not path.is_file():
        return None
    return _AS_JSON.validate_python({**json.loads(path.read_text(encoding="utf-8")), "folder": folder})


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
