"""Search spaces of sweeps and ablations of the papers: values of keys of ``params.yaml``, checked before training.

Built-in spaces stand in ``spaces.yaml``; ablations, grids around one's own settings, in ``ablations.yaml``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from cse.errors import CseError, nearest
from cse.settings.load import Settings, check_settings, flatten, packaged, parse_yaml, set_key, walk_keys
from cse.settings.presets import SYSTEM_GROUPS

# the last defines the dev score, so trials that differ in it are not comparable
_FIXED = tuple(f"train.{key}" for key in ("device", "workers", "eval_every", "save_seconds", "parameters", "selection"))
_RANGE = re.compile(r"(?P<low>[-+\w.]+?)\.\.(?P<high>[-+\w.]+?)(?P<log>\s+log)?")
_STEP = 0.001  # step of D2CSE's second search
_POSITIVE = "above 0"


@dataclass(frozen=True)
class Dimension:
    """One key and the values it may take: listed ones, or else a range."""

    key: str
    values: tuple[Any, ...] = ()
    low: int | float = 0.0
    high: int | float = 0.0
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether the range is over integers."""
        return isinstance(self.low, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to check: if these are allowed, all are."""
        return self.values or (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Return whether a value lies in the dimension."""
        return (
            value in self.values if self.values else isinstance(value, int | float) and self.low <= value <= self.high
        )

    def __str__(self) -> str:
        if self.values:
            return f"{self.key}: {', '.join(map(str, self.values))}"
        return f"{self.key}: {self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """A search space."""

    name: str  # of a built-in space, or `own`
    search: str  # `grid`, `optuna` or `two_step`
    dimensions: tuple[Dimension, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The searched keys."""
        return tuple(dimension.key for dimension in self.dimensions)

    def grid(self) -> list[dict[str, Any]]:
        """Return every combination of listed values."""
        return [
            dict(zip(self.keys, values, strict=True)) for values in product(*(part.values for part in self.dimensions))
        ]

    def second_step(self, scores: Mapping[Any, float]) -> Space | None:
        """Return the finer search between the two best values (D2CSE's appendix), or None if they leave no gap."""
        low, high = sorted(sorted(scores, key=lambda value: -scores[value])[:2])
        count = round((high - low) / _STEP)
        values = tuple(round(low + step * _STEP, 6) for step in range(1, count))
        return Space(self.name, "grid", (Dimension(self.keys[0], values),)) if values else None


def space_names() -> list[str]:
    """Return the names of the built-in spaces."""
    return list(packaged("spaces.yaml"))


def about(name: str) -> str:
    """Return a one-line description of a built-in space."""
    return str(packaged("spaces.yaml")[name]["about"])


def build_space(settings: Settings) -> Space:
    """Return the space requested by group ``tune``, with every value checked against the base settings."""
    wanted = settings.tune
    if wanted.over:
        dimensions = [parse_dimension(entry) for entry in wanted.over]
        grid = all(dimension.values for dimension in dimensions)
        name, search = "own", "grid" if grid else "optuna"
    else:
        ready = packaged("spaces.yaml")[wanted.space]
        entries = [*ready["over"], *_those_that_apply(ready.get("where", ()), settings)]
        dimensions = [parse_dimension(entry) for entry in entries]
        name, search = wanted.space, str(ready["search"])
    space = Space(name, search, tuple(dimensions))
    _check(space, settings)
    return space


def parse_dimension(entry: str) -> Dimension:
    """Parse ``KEY=[VALUE, ...]`` or ``KEY=LOW..HIGH [log]``."""
    key, equals, text = (part.strip() for part in entry.partition("="))
    if not equals:
        raise CseError(f"tune.over: {entry!r}: write KEY=[VALUE, ...] or KEY=LOW..HIGH, optionally followed by `log`")
    _check_key(key)
    found = _RANGE.fullmatch(text)
    if found is None:
        return _listed(key, text)
    low, high, log = _number(found["low"], key), _number(found["high"], key), bool(found["log"])
    if not low < high:
        raise CseError(f"tune.over: {key}: the range {text} is empty; give the lower end first")
    if log and low <= 0:
        raise CseError(f"tune.over: {key}: a logarithmic range must start above 0, not at {low:g}")
    kind = str(dict(walk_keys())[key].annotation)
    if "int" not in kind or "float" in kind:
        low, high = float(low), float(high)
    elif not (isinstance(low, int) and isinstance(high, int)):
        raise CseError(f"tune.over: {key}: takes whole numbers only, found {text}")
    return Dimension(key, (), low, high, log)


def _listed(key: str, text: str) -> Dimension:
    try:
        values = parse_yaml(text, key)
    except CseError:
        values = None
    if not isinstance(values, list):
        raise CseError(f"tune.over: {key}: {text!r} is neither a list like [8, 12] nor a range like 8..16")
    if not values:
        raise CseError(f"tune.over: {key}: the list is empty; give the values to try")
    doubled = [value for place, value in enumerate(values) if value in values[:place]]
    if doubled:
        raise CseError(f"tune.over: {key}: {doubled[0]} is listed twice; remove one")
    return Dimension(key, tuple(values))


def _check_key(key: str) -> None:
    known = [name for name, _ in walk_keys()]
    group = key.partition(".")[0]
    if key not in known:
        raise CseError(f"tune.over: {key}: no such setting{nearest(key, known)}; `cse settings` lists all")
    if group not in SYSTEM_GROUPS:  # the others change the data of stage `train`, or not the dev score
        what = "changes the data, not the training" if group == "data" else "does not change what the dev pairs measure"
        raise CseError(f"tune.over: {key}: {what}; search keys of the groups {', '.join(SYSTEM_GROUPS)}")
    if key in _FIXED:
        raise CseError(f"tune.over: {key}: must be the same in all trials; remove it")


def _check(space: Space, settings: Settings) -> None:
    """Refuse spaces that cannot be searched, before training starts."""
    if not space.dimensions:
        raise CseError("tune: the search space is empty; give tune.over or another tune.space")
    doubled = [key for place, key in enumerate(space.keys) if key in space.keys[:place]]
    if doubled:
        raise CseError(f"tune.over: {doubled[0]} appears twice; keep one")
    for dimension in space.dimensions:
        _check_use(dimension.key, space.keys, settings)
        if _corrupts_anew(dimension.key, settings):
            raise CseError(
                f"tune: {dimension.key}: rows were already corrupted with one value of it; to search it, set "
                "objective.replaced_tokens.corruption: on_the_fly"
            )
    reached(space, settings)


def reached(space: Space, settings: Settings) -> list[Settings]:
    """Return the settings of every grid trial, or those with each listed value and both ends of each range."""
    if space.search == "grid":
        return [settings_with(settings, values) for values in space.grid()]
    return [settings_with(settings, {part.key: value}) for part in space.dimensions for value in part.ends]


def _check_use(key: str, keys: Iterable[str], settings: Settings) -> None:
    """Refuse keys that the system does not use: all trials would be the same."""
    parts, trained = key.split("."), settings.objective.over(settings.data.more_terms).terms()
    if settings.mine.wanted and (parts[0] == "backbone" or key in ("pooler.kind", "train.roles")):
        raise CseError(f"tune: {key}: rows were mined with one value of it; remove it")
    if parts[0] == "prompt" and key not in ("prompt.kind", "prompt.cls") and settings.prompt.kind == "none":
        raise CseError(f"tune: {key}: the system has no prompt (prompt.kind none); remove it or choose another space")
    weight = f"objective.{parts[1]}.weight" if parts[0] == "objective" else ""
    if weight and key != weight and weight not in keys and parts[1] not in trained:
        raise CseError(f"tune: {key}: the term has weight 0 ({weight}); give it a weight, or search another key")


def _corrupts_anew(key: str, settings: Settings) -> bool:
    """Return whether a key affects how rows are corrupted before training."""
    replaced = "objective.replaced_tokens."
    beforehand = settings.objective.replaced_tokens.corrupts_beforehand
    kept = (f"{replaced}weight", f"{replaced}discriminator", f"{replaced}condition", f"{replaced}copy_learning_rate")
    decides = key in ("train.max_length", "train.epochs", "train.seed") or key.startswith(replaced)
    return beforehand and decides and key not in kept


def settings_with(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return settings with some values changed."""
    tree = settings.model_dump(mode="json")
    for key, value in values.items():
        set_key(tree, key, value)
    where = ", ".join(f"{key} {value}" for key, value in values.items())
    return check_settings(tree, where=f"tune: {where}")


def _those_that_apply(entries: Iterable[str], settings: Settings) -> list[str]:
    """Return the entries ``KEY [VALUE]: entry`` whose key has that value; without VALUE, anything but 0 and none."""
    values = flatten(settings.model_dump())
    found = []
    for line in entries:
        condition, _, entry = line.partition(": ")
        key, _, value = condition.partition(" ")
        if str(values[key]) == value if value else values[key] not in (0, "none"):
            found.append(entry)
    return found


def _number(text: str, key: str) -> float:
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    raise CseError(f"tune.over: {key}: {text!r} is not a number; write a range as LOW..HIGH, for instance 1e-3..5e-2")


@dataclass(frozen=True)
class GridCell:
    """One setting of an ablation."""

    label: str
    changes: Mapping[str, Any]
    value: float | None = None  # for plots; None: no number


@dataclass(frozen=True)
class Grid:
    """An ablation."""

    name: str
    title: str
    about: str
    needs: Mapping[str, Any]
    hint: str
    key: str | None = None  # takes the values; None: the cells are categories
    values: Sequence[float] = ()  # the papers' numbers
    cells: Sequence[GridCell] = ()

    def grid(self, settings: Settings, values: Sequence[float] | None = None) -> list[GridCell]:
        """Return the cells to run, after checking the base settings; ``values`` replace the papers'."""
        present = flatten(settings.model_dump())
        for key, wanted in self.needs.items():
            if not (present[key] > 0 if wanted == _POSITIVE else present[key] == wanted):
                raise CseError(
                    f"ablation {self.name}: {key} is {present[key]}, but must be {wanted}; try `{self.hint}`"
                )
        if values is not None and self.key is None:
            raise CseError(f"ablation {self.name}: does not vary a number; leave --values out")
        numbers = self.values if values is None else values
        varied = [GridCell(f"{self.title} {value:g}", {str(self.key): value}, float(value)) for value in numbers]
        return [*self.cells, *varied]


def ablation_names() -> list[str]:
    """Return the names of all ablations."""
    return list(packaged("ablations.yaml"))


def load_ablation(name: str) -> Grid:
    """Return an ablation by name."""
    known = packaged("ablations.yaml")
    if name not in known:
        raise CseError(f"{name}: no such ablation{nearest(name, known)}; there are {', '.join(known)}")
    cells = [GridCell(cell["label"], cell["set"]) for cell in known[name].get("cells", ())]
    return Grid(**{**known[name], "name": name, "cells": cells})
