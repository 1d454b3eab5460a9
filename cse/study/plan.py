"""What a study trains: a YAML file with settings by name and the rounds they go through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from cse.errors import CseError, in_terms_of, nearest
from cse.settings import Settings
from cse.settings.load import parse_yaml
from cse.settings.presets import VIEW, preset_values
from cse.settings.spaces import settings_with

BARE = "backbone"  # the bare backbone, which every setting is compared with
PRESET = "preset"  # in place of a key: the setting starts from a preset's system
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Values = dict[str, Any]  # settings by dotted key


class Round(pydantic.BaseModel):
    """How settings are trained in one round: a screen of short trainings, say, or whole ones.

    Attributes:
        seeds: each setting is trained with each of them.
        snapshots: evaluations in a training whose weights are measured too; 0: only the best weights are.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    set: Values = {}
    seeds: list[int] = Field([42], min_length=1)
    snapshots: int = Field(0, ge=0)


class Study(pydantic.BaseModel):
    """A study as its file says it.

    Attributes:
        set: values that all trainings have in common, on top of ``params.yaml``.
        rounds: by name, in the order in which they narrow the choice.
        settings: by name, the values in which each differs, on top of a ``preset`` if it names one.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    set: Values = {}
    rounds: dict[Name, Round] = Field(min_length=1)
    settings: dict[Name, Values] = Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Study:
        if BARE in self.settings:
            raise ValueError(f"settings.{BARE}: the name of the bare backbone; take another one")
        return self


@dataclass(frozen=True)
class Run:
    """One training of a study."""

    setting: str
    seed: int
    settings: Settings

    @property
    def name(self) -> str:
        """Name of its folder."""
        return BARE if self.setting == BARE else f"{self.setting}-{self.seed}"


def read_study(path: Path) -> Study:
    """Read the file of a study."""
    if not path.is_file():
        raise CseError(f"{path}: no such file{nearest(str(path), map(str, path.parent.glob('*.yaml')))}")
    tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(tree, dict):
        raise CseError(f"{path}: not a study; write rounds and settings, see docs/study.md")
    try:
        return Study.model_validate(tree)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CseError(f"{path}: {where}{': ' if where else ''}{first['msg']}") from None


def runs_of(study: Study, round_name: str, base: Settings, only: Sequence[str] = ()) -> list[Run]:
    """Return the trainings of a round, all settings with the first seed before any with the next.

    Args:
        only: names of settings; none: all.
    """
    if round_name not in study.rounds:
        known = ", ".join(study.rounds)
        raise CseError(f"no round {round_name!r} in the study{nearest(round_name, study.rounds)}; there are {known}")
    for name in only:
        if name not in study.settings:
            raise CseError(f"no setting {name!r} in the study{nearest(name, study.settings)}")
    how = study.rounds[round_name]
    runs = []
    for seed in how.seeds:
        for name, values in study.settings.items():
            if only and name not in only:
                continue
            own = {key: value for key, value in values.items() if key != PRESET}
            view = study.set.get(VIEW, base.data.view)
            with in_terms_of(f"setting {name}: "):
                system = preset_values(values[PRESET], view, keep_data=True) if PRESET in values else {}
                settings = settings_with(base, system | study.set | own | how.set | {"train.seed": seed})
            runs.append(Run(name, seed, settings))
    return runs
