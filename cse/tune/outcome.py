"""Results of a sweep: its trials, what they say together, and its files: CSV and Optuna's pictures."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.errors import CseError
from cse.evaluation.dev_facts import SPEARMAN, dev_key, standard_error
from cse.files import write_csv
from cse.outputs import publish_file
from cse.settings.presets import MACHINE_KEYS
from cse.tune.spaces import SEED

TRIALS = "trials.csv"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial: a setting, trained with one seed.

    Attributes:
        number: position in start order, from 1.
        state: ``finished``, ``stopped`` (fell behind) or ``failed``.
        config: what the trial changes; a seed stands in it only if it is not that of the base settings.
        values: all values that differ from the base settings, such as the spacing of evaluations.
        score: best dev score times 100, or None.
    """

    number: int
    name: str
    seed: int
    config: dict[str, Any]
    values: dict[str, Any]
    folder: str
    state: str = FAILED
    score: float | None = None
    percent: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Tried:
    """A setting with its trials, one per seed."""

    trials: tuple[TrialRecord, ...]

    @property
    def first(self) -> TrialRecord:
        """The trial with the first seed."""
        return self.trials[0]

    @property
    def state(self) -> str:
        """``finished`` if all are."""
        return next((trial.state for trial in self.trials if trial.state != FINISHED), FINISHED)

    @property
    def scores(self) -> list[float]:
        """The dev scores of the seeds that have one."""
        return [trial.score for trial in self.trials if trial.score is not None]

    @property
    def mean(self) -> float:
        """The mean dev score; minus infinity if there is none."""
        return statistics.fmean(self.scores) if self.scores else -math.inf


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        keys: that were searched.
        dev_pairs: number of dev pairs, or items of the dev task, behind each score.
    """

    folder: Path
    keys: tuple[str, ...]
    trials: tuple[TrialRecord, ...]
    dev_pairs: int
    measure: str = SPEARMAN

    @property
    def ranked(self) -> list[Tried]:
        """The settings, finished ones first, the best mean dev score first; on ties, the earliest."""
        found: dict[str, dict[int, TrialRecord]] = {}
        for trial in self.trials:
            own = json.dumps({key: value for key, value in trial.config.items() if key != SEED}, sort_keys=True)
            found.setdefault(own, {}).setdefault(trial.seed, trial)
        tried = [Tried(tuple(by_seed.values())) for by_seed in found.values()]
        return sorted(tried, key=lambda setting: (setting.state != FINISHED, -setting.mean))

    @property
    def best(self) -> TrialRecord:
        """The first trial of the setting with the best dev score, a mean over seeds."""
        first = next(iter(self.ranked), None)
        if first is None or first.state != FINISHED:
            reasons = [trial.reason for trial in self.trials if trial.reason] or ["all were stopped"]
            raise CseError(f"tune: no trial succeeded ({reasons[0]}); {self.folder / TRIALS} lists them all")
        return first.first

    @property
    def noise(self) -> float:
        """The standard error of the best score, in points."""
        return standard_error(self.ranked[0].mean, self.dev_pairs, self.measure)

    @property
    def alike(self) -> list[Tried]:
        """The finished settings within noise of the best."""
        finished = [setting for setting in self.ranked if setting.state == FINISHED]
        return [setting for setting in finished[1:] if finished[0].mean - setting.mean <= self.noise]

    @property
    def doubt(self) -> str:
        """A sentence on which trials the dev pairs cannot distinguish from the best."""
        alike = sorted(one.first.number for one in self.alike)
        what = "pairs" if self.measure == SPEARMAN else "items"
        measured = f"{self.noise:.2f} points (a standard error over {self.dev_pairs:,} dev {what})"
        if not alike:
            return f"no other finished trial is within {measured} of the best"
        which = "1 other trial is" if len(alike) == 1 else f"{len(alike)} other trials are"
        return f"{which} within {measured} of the best, too close to tell apart: {', '.join(map(str, alike))}"


def to_promote(values: Mapping[str, Any], searched: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a trial to write into the settings file, and those to leave out.

    Machine settings and the sweep's own budget (rows, evaluations) are left out unless they were searched.

    Args:
        values: values that differ from the settings file, by dotted key.
    """
    budget = (*MACHINE_KEYS, "train.eval_every", "data.max_rows")
    left_out = {key: value for key, value in values.items() if key in budget or key.startswith("tune.")}
    left_out = {key: value for key, value in left_out.items() if key not in searched}
    return {key: value for key, value in values.items() if key not in left_out}, left_out


def write_trials(sweep: Sweep) -> None:
    """Write ``trials.csv``, one line per trial."""
    facts = ("trial", "state", dev_key(sweep.measure), "within_noise", "percent", "seconds", "setting", "seed")
    alike = [trial.number for setting in sweep.alike for trial in setting.trials]
    rows = [
        [
            *(t.number, t.state, t.score, "yes" if t.number in alike else "", t.percent, t.seconds, t.name, t.seed),
            *(*(t.config.get(key, "") for key in sweep.keys), t.reason, t.folder),
        ]
        for t in sweep.trials
    ]
    with publish_file(sweep.folder / TRIALS) as target:
        write_csv(target, [*facts, *sweep.keys, "reason", "folder"], rows)


def describe(sweep: Sweep) -> str:
    """Return a table of the settings, best first, a line with the best values, and a note on noise."""
    from cse.evaluation.table import format_rows

    best, alike = sweep.best, sweep.alike
    listed = all({*trial.config} - {SEED} == {*sweep.keys} - {SEED} for trial in sweep.trials)
    keys = [key for key in sweep.keys if key != SEED]
    rows = [["trial", "dev", "seeds", "done", *(keys if listed else ["setting"]), "state"]]
    for setting in sweep.ranked:
        trial = setting.first
        reason = next((each.reason for each in setting.trials if each.reason), "")
        state = setting.state + (f": {reason}" if reason else "")
        state += ", within noise of the best" if setting in alike else ""
        shown = [trial.config[key] for key in keys] if listed else [trial.name]
        values = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in shown]
        done = f"{min(each.percent for each in setting.trials)} %"
        rows.append([str(trial.number), spread(setting.scores), str(len(setting.trials)), done, *values, state])
    what = ", ".join(f"{key} {value}" for key, value in best.values.items()) if listed else best.name
    said = f"best: trial {best.number}, dev {sweep.ranked[0].mean:.2f} with {what}"
    return f"{format_rows(rows, 'text')}\n{said}\n{sweep.doubt}"


def spread(values: list[float]) -> str:
    """Return the mean, and the sample standard deviation of several values."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


# ---- pictures -------------------------------------------------------------------------------------------------------


def draw(sweep: Sweep) -> list[Path]:
    """Write ``slice.png``, and ``parallel.png`` if several keys were searched; none without two scores."""
    import matplotlib as mpl
    import optuna

    mpl.use("Agg")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    scored = [trial for trial in sweep.trials if trial.score is not None]
    if len(scored) < 2:
        return []
    by_key = {key: [trial.values.get(key) for trial in scored] for key in sweep.keys}
    if not by_key or any(key not in trial.values for trial in scored for key in sweep.keys):
        by_key = {"setting": [trial.name for trial in scored]}
    axes = {key: _axis(values, optuna.distributions) for key, values in by_key.items()}
    study, shown = optuna.create_study(direction="maximize"), optuna.visualization.matplotlib
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls these pictures experimental
        for number, trial in enumerate(scored):
            params = {key: axes[key][1][number] for key in axes}
            kinds = {key: kind for key, (kind, _) in axes.items()}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=trial.score))
        drawn = {"slice": shown.plot_slice(study, target_name="dev score")}
        if len(axes) > 1:
            drawn["parallel"] = shown.plot_parallel_coordinate(study, target_name="dev score")
    paths = [sweep.folder / f"{name}.png" for name in drawn]
    for path, picture in zip(paths, drawn.values(), strict=True):
        figure = (picture if hasattr(picture, "figure") else picture[0]).figure
        with publish_file(path) as target:
            figure.savefig(target, format="png", dpi=120, bbox_inches="tight")
    return paths


def _axis(values: list[Any], known: Any) -> tuple[Any, list[Any]]:
    """Return Optuna's distribution of some values, of numbers or of words, and the values in it."""
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values) or len({*values}) == 1:
        plain = [value if isinstance(value, int | float | str) else str(value) for value in values]
        return known.CategoricalDistribution(list(dict.fromkeys(plain))), plain
    low, high = min(values), max(values)
    kind = known.IntDistribution if all(isinstance(value, int) for value in values) else known.FloatDistribution
    return kind(low, high, log=low > 0 and high / low >= 30), values
