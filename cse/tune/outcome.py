"""What a sweep found: read from its trials, written as JSON and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.files import write_csv
from cse.outputs import publish_file
from cse.settings.presets import MACHINE_KEYS
from cse.settings.spaces import Dimension, Space
from cse.tune.job import FAILED, METRIC, RESULT, Job, read_curve, steps_of

FOLDER_LINE = "sweep folder: "  # what `python -m cse.cli.sweep` says last
SWEEP, TRIALS, PAGE = "sweep.json", "trials.csv", "sweep.html"


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    Attributes:
        number: in the order in which they were started, from 1.
        state: ``finished``, ``stopped`` (it fell behind) or ``failed``.
        config: what was searched, by dotted key.
        values: everything that sets the trial apart from the settings around, such as its evaluations' spacing.
        score: best dev Spearman * 100, or None.
        percent: how much of the training was done.
        seconds: from start to end.
        curve: ``(percent, best dev score so far)``.
        reason: why it failed.
        folder: of its checkpoint, metrics and plots.
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
        """The values in a line, without the groups of their keys."""
        return ", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in self.config.items())


@dataclass(frozen=True)
class Sweep:
    """A sweep that is done.

    Attributes:
        folder: of everything that it left.
        space: name of its space.
        search: how it searched.
        dimensions: what it searched.
        trials: in the order of their start.
        dev_pairs: pairs that the scores were measured on.
    """

    folder: Path
    space: str
    search: str
    dimensions: tuple[Dimension, ...]
    trials: tuple[TrialRecord, ...]
    dev_pairs: int

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that were searched."""
        return tuple(part.key for part in self.dimensions)

    @property
    def best(self) -> TrialRecord:
        """The finished trial with the best dev score, the earlier of equals.

        Raises:
            CseError: none has finished.
        """
        finished = [trial for trial in self.trials if trial.state == "finished"]
        if not finished:
            reasons = [trial.reason for trial in self.trials if trial.reason] or ["all were stopped"]
            raise CseError(f"tune: no trial ended well ({reasons[0]}); {self.folder / TRIALS} has them all")
        return max(finished, key=lambda trial: trial.score or -math.inf)

    @property
    def noise(self) -> float:
        """The standard error of the best score, in points."""
        return standard_error(self.best.score or 0.0, self.dev_pairs)

    def within_noise(self, trial: TrialRecord) -> bool:
        """Return whether a finished trial is one that the dev pairs cannot tell from the best."""
        best = self.best
        finished = trial is not best and trial.state == "finished" and trial.score is not None
        return finished and (best.score or 0.0) - (trial.score or 0.0) <= self.noise

    @property
    def doubt(self) -> str:
        """What the dev pairs leave open about the best trial, in a sentence."""
        others = [trial for trial in self.trials if trial.state == "finished" and trial is not self.best]
        alike = [trial for trial in others if self.within_noise(trial)]
        measured = f"{self.noise:.2f} points (a standard error over {self.dev_pairs:,} dev pairs)"
        if not alike:
            return f"no other finished trial lies within {measured} of the best"
        which = "1 other trial lies" if len(alike) == 1 else f"{len(alike)} other trials lie"
        numbers = ", ".join(str(trial.number) for trial in alike)
        return f"{which} within {measured} of the best, which cannot tell them apart: {numbers}"


def standard_error(score: float, pairs: int) -> float:
    """Return the standard error of a Spearman correlation, both times 100; infinite for fewer than four pairs.

    Fisher's z of a Spearman correlation has the variance ``(1 + rho^2 / 2) / (n - 3)`` (Bonett and Wright 2000,
    Psychometrika 65(1)); times ``1 - rho^2``, the slope of ``tanh``, that is an error of the correlation itself. Trials
    are scored on the same pairs, so their errors are alike and a difference is somewhat surer than two separate scores.
    """
    if pairs < 4:
        return math.inf
    rho = score / 100
    return 100 * (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (pairs - 3))


def to_promote(values: Mapping[str, Any], searched: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what of a trial's settings goes into the settings file, and what stays out.

    Out stay the machine's settings and the sweep's own budget (rows, evaluations), unless they were searched.

    Args:
        values: what sets the trial apart from the settings file, by dotted key.
        searched: keys of the space.
    """
    wanted = {key: value for key, value in values.items() if key in searched or not _is_budget(key)}
    return wanted, {key: value for key, value in values.items() if key not in wanted}


def _is_budget(key: str) -> bool:
    return key in (*MACHINE_KEYS, "train.eval_every", "data.max_rows") or key.startswith("tune.")


def trial_records(trials: Sequence[Any], space: Space, job: Job) -> list[TrialRecord]:
    """Return the records of Ray Tune's trials."""
    return [_record(number, trial, space, job) for number, trial in enumerate(trials, start=1)]


def _record(number: int, trial: Any, space: Space, job: Job) -> TrialRecord:
    config = job.config_of({key: trial.config[key] for key in space.keys})
    folder = job.folder_of(config)
    last: Mapping[str, Any] = trial.last_result or {}
    curve = read_curve(folder, steps_of(job.settings_of(config), job.rows))
    values, score, state, reason = dict(config), last.get(METRIC), "stopped", ""
    if (folder / FAILED).is_file():
        score, state, reason, curve = None, "failed", (folder / FAILED).read_text(encoding="utf-8"), []
    elif (folder / RESULT).is_file():
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        values, score, state = found["values"], found[METRIC], "finished"
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
    """Return in one line why a trial's worker was lost."""
    path = getattr(trial, "error_file", None)
    lines = Path(path).read_text(encoding="utf-8").splitlines() if path and Path(path).is_file() else []
    said = [line.strip() for line in lines if line.strip()]
    known = [line for line in said if "Error" in line or "died" in line]
    return (known or said or ["it did not end; the sweep was stopped"])[-1][:300]


def write_trials(sweep: Sweep) -> None:
    """Write every trial as a line of ``trials.csv``."""
    with publish_file(sweep.folder / TRIALS) as target:
        write_csv(
            target,
            ["trial", "state", METRIC, "within_noise", "percent", "seconds", *sweep.keys, "reason", "folder"],
            [
                [
                    *(t.number, t.state, t.score, "yes" if sweep.within_noise(t) else "", t.percent, t.seconds),
                    *(*t.config.values(), t.reason, t.folder),
                ]
                for t in sweep.trials
            ],
        )


def write_sweep(sweep: Sweep) -> None:
    """Write ``sweep.json``, last of all: it says that the sweep is done."""
    tree = {
        "space": sweep.space,
        "search": sweep.search,
        "dimensions": [asdict(part) for part in sweep.dimensions],
        "trials": [asdict(trial) for trial in sweep.trials],
        "dev_pairs": sweep.dev_pairs,
    }
    with publish_file(sweep.folder / SWEEP) as target:
        target.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")


def describe(sweep: Sweep) -> str:
    """Return the trials as a table, best first, the best setting in a line, and what the dev pairs leave open."""
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
    """Return a sweep that is done, or None."""
    try:
        tree = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    trials = tuple(
        TrialRecord(**{**trial, "curve": [tuple(point) for point in trial["curve"]]}) for trial in tree["trials"]
    )
    dimensions = tuple(Dimension(**{**part, "values": tuple(part["values"])}) for part in tree["dimensions"])
    return Sweep(folder, tree["space"], tree["search"], dimensions, trials, tree["dev_pairs"])


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
