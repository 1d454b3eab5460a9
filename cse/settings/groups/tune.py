"""Group ``tune``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, NonNegative, Positive


class TuneSettings(Group):
    """Search for better settings (`cse tune`), by the score on the dev pairs."""

    space: Literal["default", "promcse", "dcpcse", "d2cse"] = Field(
        "default", description="A ready search space; the last three are those of the papers."
    )
    over: list[str] = Field(
        [],
        description="A space of your own in its place: `KEY=[VALUE, ...]` or `KEY=LOW..HIGH`, with `log` behind it for "
        "a logarithmic scale.",
    )
    search: Literal["auto", "optuna", "grid", "two_step"] = Field(
        "auto", description="How to search; `auto`: as the space is meant, and a grid for an own one of lists alone."
    )
    trials: Positive = Field(12, le=100_000, description="`optuna`: settings to try; grids try all.")
    stop_early: bool = Field(True, description="`optuna`: stop trials that fall behind the others (ASHA).")
    evaluations: Positive = Field(
        4, le=1000, description="`stop_early`: evaluations of a trial, evenly spaced; train.eval_every follows from it."
    )
    concurrent: Positive | None = Field(None, description="Most trials at once; null: as many as find room.")
    cpus_per_trial: Positive = Field(1, le=1024, description="Processors of a trial; it uses as many threads.")
    gpus_per_trial: NonNegative | None = Field(
        None,
        description="GPUs of a trial, or the share of one that several trials use together (0.25: four trials); null: "
        "one where there is one.",
    )
    seed: int = Field(42, ge=0, description="Seed of the search.")
