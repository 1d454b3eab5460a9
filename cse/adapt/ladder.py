"""The ladder of an adaptation: models from the cheapest to the dearest, and the choice among them on held-out rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

BARE, HEAD, PROMPTS, PROMPTS_HEAD, FULL, FULL_HEAD = "backbone", "head", "prompts", "prompts_head", "full", "full_head"
QUERY_MAP, QUERY_PROMPTS = "query_map", "query_prompts"
ORDER = (BARE, QUERY_MAP, QUERY_PROMPTS, HEAD, PROMPTS, PROMPTS_HEAD, FULL, FULL_HEAD)  # a tie goes to the cheaper
HEADED = {BARE: HEAD, PROMPTS: PROMPTS_HEAD, FULL: FULL_HEAD}  # what a head makes of a model
IN_WORDS = {
    BARE: "the bare backbone",
    QUERY_MAP: "adapted queries",
    QUERY_PROMPTS: "adapted queries with prompts",
    HEAD: "a head on the bare backbone",
    PROMPTS: "prompts",
    PROMPTS_HEAD: "prompts with a head",
    FULL: "full fine-tuning",
    FULL_HEAD: "full fine-tuning with a head",
}


def shares_backbone(system: str) -> bool:
    """Return whether a system leaves the weights of the backbone as they are, so that others can use them too."""
    return system not in (FULL, FULL_HEAD)


@dataclass
class Rung:
    """One kind of model.

    Attributes:
        models: their names, one per seed.
        devs: dev score times 100 of each model; None where nothing can be scored.
    """

    system: str
    models: list[str] = field(default_factory=list)
    devs: list[float | None] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def dev(self) -> float | None:
        """Mean dev score of the models; None where nothing can be scored."""
        known = [dev for dev in self.devs if dev is not None]
        return statistics.fmean(known) if known and len(known) == len(self.devs) else None

    @property
    def best(self) -> str:
        """The model with the best dev score, the first of equal ones."""
        return max(zip(self.models, self.devs, strict=True), key=lambda each: _or_lowest(each[1]))[0]

    def __str__(self) -> str:
        took = f"{self.seconds:.0f} s" if self.seconds < 100 else f"{self.seconds / 60:.0f} min"
        seeds = f", mean of {len(self.models)} seeds" if len(self.models) > 1 else ""
        score = "no dev score" if self.dev is None else f"dev {self.dev:.2f}{seeds}"
        return f"{IN_WORDS[self.system]}: {score}, {took}"


@dataclass
class Ladder:
    """The rungs so far, the cheapest first."""

    rungs: dict[str, Rung] = field(default_factory=dict)

    def add(self, system: str, model: str, dev: float | None, seconds: float) -> None:
        """Add a model to the rung of its kind."""
        rung = self.rungs.setdefault(system, Rung(system))
        rung.models.append(model)
        rung.devs.append(dev)
        rung.seconds += seconds

    def dev_of(self, model: str) -> float | None:
        """Return the dev score of a model; None where nothing can be scored."""
        known = {name: dev for rung in self.rungs.values() for name, dev in zip(rung.models, rung.devs, strict=True)}
        return known[model]

    def chosen(self, systems: Sequence[str] = ORDER) -> Rung | None:
        """Return the rung with the best dev score among some systems, the cheaper of equal ones.

        Where nothing can be scored, that is the dearest trained without a head; None if there is no rung at all.
        """
        there = [self.rungs[system] for system in ORDER if system in systems and system in self.rungs]
        if there and all(rung.dev is None for rung in there):
            return next((rung for rung in reversed(there) if rung.system not in HEADED.values()), there[0])
        return max(there, key=lambda rung: _or_lowest(rung.dev), default=None)

    def choice(self) -> list[str]:
        """Return the system of ``chosen`` and that of ``other_kind``, as far as there are any."""
        chosen = self.chosen()
        other = self.other_kind(chosen) if chosen else None
        return [rung.system for rung in (chosen, other) if rung]

    def other_kind(self, chosen: Rung) -> Rung | None:
        """Return the best of the other kind: one with the backbone's weights if those chosen are its own, or not."""
        shared = shares_backbone(chosen.system)
        return self.chosen([system for system in ORDER if shares_backbone(system) != shared])


def _or_lowest(score: float | None) -> float:
    return -math.inf if score is None else score
