"""Group ``tune``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import NonNegative, Positive, SettingsGroup


class TuneSettings(SettingsGroup):
    """Hyperparameter search (`cse tune`) by dev score."""

    space: Literal["default", "promcse", "dcpcse", "d2cse"] = Field(
        "default",
        description="Built-in search space; all but `default` come from the papers.",
    )
    over: list[str] = Field(
        [],
        description="Your own space, in place of `space`: entries `KEY=[VALUE, ...]` or `KEY=LOW..HIGH`, followed by "
        "`log` for a logarithmic scale.",
    )
    trials: Positive = Field(
        12, le=100_000, description="`optuna`: number of trials; a grid always tries every combination."
    )
    evaluations: Positive = Field(
        4,
        le=1000,
        description="`optuna`: evenly spaced evaluations per trial, in place of `train.eval_every`; trials that fall "
        "behind stop there (ASHA). 1: every trial runs to its end, evaluated by `train.eval_every`.",
    )
    concurrent: Positive | None = Field(None, description="Maximum concurrent trials; null: as many as fit.")
    cpus_per_trial: Positive = Field(1, le=1024, description="CPUs per trial; also its number of threads.")
    gpus_per_trial: NonNegative | None = Field(
        None,
        description="GPUs per trial; a fraction lets several trials share one GPU (0.25: four trials). null: one GPU "
        "if there is one.",
    )
