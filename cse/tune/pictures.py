"""A sweep in Optuna's pictures: the dev score over each searched key, and all keys at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from cse.outputs import publish_file
from cse.tune.outcome import Sweep, TrialRecord

_SETTING = "setting"


def draw(sweep: Sweep) -> list[Path]:
    """Write ``slice.png``, and ``parallel.png`` if several keys were searched; none without two scores."""
    scored = [trial for trial in sweep.trials if trial.score is not None]
    if len(scored) < 2:
        return []
    import matplotlib as mpl
    import optuna

    mpl.use("Agg")
    keys = [_SETTING] if any(key not in trial.values for trial in scored for key in sweep.keys) else [*sweep.keys]
    keys = keys or [_SETTING]
    kinds = {key: _distribution([_value(trial, key) for trial in scored], optuna.distributions) for key in keys}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls these pictures experimental
        for trial in scored:
            params = {key: _value(trial, key) for key in keys}
            study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=trial.score))
        shown = optuna.visualization.matplotlib
        drawn = {"slice": shown.plot_slice(study, target_name="dev score")}
        if len(keys) > 1:
            drawn["parallel"] = shown.plot_parallel_coordinate(study, target_name="dev score")
    paths = []
    for name, axes in drawn.items():
        figure = (axes if hasattr(axes, "figure") else axes[0]).figure
        with publish_file(sweep.folder / f"{name}.png") as target:
            figure.savefig(target, format="png", dpi=120, bbox_inches="tight")
        paths.append(sweep.folder / f"{name}.png")
    return paths


def _value(trial: TrialRecord, key: str) -> Any:
    value = trial.name if key == _SETTING else trial.values[key]
    return value if isinstance(value, int | float | str) else str(value)


def _distribution(values: list[Any], known: Any) -> Any:
    """Return Optuna's distribution of some values: an axis of numbers, or one of words."""
    if any(isinstance(value, str | bool) for value in values) or min(values) == max(values):
        return known.CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(values), max(values)
    log = low > 0 and high / low >= 30
    if all(isinstance(value, int) for value in values):
        return known.IntDistribution(low, high, log=log)
    return known.FloatDistribution(low, high, log=log)
