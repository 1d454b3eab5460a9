"""Search spaces of ``cse tune``: values of keys of ``params.yaml``, checked before training.

Those that ship, the papers' grids and ablations among them, stand in ``cse/settings/spaces.yaml``; a file of one's own
holds one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from cse.errors import CseError, in_terms_of, nearest
from cse.settings.load import Settings, flatten, packaged, parse_yaml, read_text, settings_with, walk_keys
from cse.settings.outcome import TuneSettings
from cse.settings.presets import SYSTEM_GROUPS, preset_values

# the last defines the dev score, so trials that differ in it are not comparable
_FIXED = tuple(f"train.{key}" for key in ("device", "workers", "eval_every", "save_seconds", "parameters", "selection"))
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE = re.compile(rf"{_NUMBER}\.\.{_NUMBER}(\s+log)?")
BARE = "backbone"  # the bare backbone, which every setting is compared with
PRESET = "preset"  # in place of a key: the setting starts from a preset's system
SEED = "train.seed"
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]


class SpaceFile(pydantic.BaseModel):
    """A space as its file says it; see ``spaces.yaml``.

    Attributes:
        set: values that all trials have in common, on top of ``params.yaml``.
        settings: by name, the values in which each differs, on top of a ``preset`` if it names one.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    about: str = ""
    search: Literal["grid", "optuna"] | None = None
    set: dict[str, Any] = {}
    over: list[str] = []
    where: list[str] = []
    settings: dict[Name, dict[str, Any]] = {}
    needs: list[str] = []
    hint: str = ""


@dataclass(frozen=True)
class Dimension:
    """One key and the values it may take: listed ones, or else a range."""

    key: str
    values: tuple[Any, ...] = ()
    low: int | float = 0.0
    high: int | float = 0.0
    log: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values to check: if these are allowed, all are."""
        return self.values or (self.low, self.high)

    def holds(self, value: Any) -> bool:
        """Return whether a value lies in the dimension."""
        if self.values:
            return value in self.values
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.values:
            return f"{self.key}: {', '.join(map(str, self.values))}"
        return f"{self.key}: {self.low:g} to {self.high:g}{' (log)' if self.log else ''}"


@dataclass(frozen=True)
class Setting:
    """One point of a grid: a name, and the values that it sets."""

    name: str
    values: Mapping[str, Any]


def named(values: Mapping[str, Any]) -> str:
    """Return the values in one line, without the groups of their keys."""
    shown = {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in values.items()}
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in shown.items())


@dataclass(frozen=True)
class Space:
    """A search space.

    Attributes:
        name: of one that ships, of a file without its ending, or ``own``.
        settings: named ones, tried before the combinations of listed values.
    """

    name: str
    search: str
    dimensions: tuple[Dimension, ...]
    settings: tuple[Setting, ...] = field(default=())

    @property
    def keys(self) -> tuple[str, ...]:
        """The searched keys."""
        return tuple(dimension.key for dimension in self.dimensions)

    def grid(self) -> list[Setting]:
        """Return the named settings and every combination of listed values."""
        if not self.dimensions:
            return list(self.settings)
        cells = (dict(zip(self.keys, each, strict=True)) for each in product(*(one.values for one in self.dimensions)))
        return [*self.settings, *(Setting(named(values), values) for values in cells)]


def shipped() -> dict[str, SpaceFile]:
    """Return the spaces that ship by name."""
    return {name: SpaceFile.model_validate(tree) for name, tree in packaged("spaces.yaml").items()}


def read_space(wanted: TuneSettings) -> SpaceFile:
    """Return the space that group ``tune`` asks for: one that ships, that of a file, or its own entries."""
    if wanted.over:
        return SpaceFile(over=wanted.over)
    known, path = shipped(), Path(wanted.space)
    if wanted.space in known:
        return known[wanted.space]
    if path.suffix not in (".yaml", ".yml"):
        raise CseError(
            f"tune.space: no space {wanted.space!r}{nearest(wanted.space, known)}; name a YAML file, or one of "
            f"{', '.join(known)}"
        )
    if not path.is_file():
        raise CseError(f"{path}: no such file{nearest(str(path), map(str, path.parent.glob('*.yaml')))}")
    tree = parse_yaml(read_text(path), str(path))
    if not isinstance(tree, dict):
        raise CseError(f"{path}: not a space; write over or settings, see docs/tune.md")
    try:
        return SpaceFile.model_validate(tree)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise CseError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def build_space(settings: Settings) -> Space:
    """Return the space requested by group ``tune``, with every value checked against the base settings.

    Args:
        settings: with the values that the space's file has for all trials.
    """
    wanted = settings.tune
    file, name = read_space(wanted), "own" if wanted.over else Path(wanted.space).name.split(".")[0]
    present = flatten(settings.model_dump())
    for condition in file.needs:
        key, _, value = condition.partition(" ")
        if not _holds(condition, present):
            hint = f"; try `{file.hint}`" if file.hint else ""
            raise CseError(f"space {name}: {key} is {present[key]}, but must be {value or 'above 0'}{hint}")
    where = [entry.partition(": ") for entry in file.where]
    fitting = [entry for condition, _, entry in where if _holds(condition, present)]
    dimensions = tuple(map(parse_dimension, [*file.over, *fitting]))
    listed = all(dimension.values for dimension in dimensions)
    search = file.search or ("grid" if listed else "optuna")
    if (search == "grid" and not listed) or (file.settings and search != "grid"):
        raise CseError(f"space {name}: a grid and named settings take lists, not ranges; give every value")
    if BARE in file.settings:
        raise CseError(f"space {name}: settings.{BARE}: the name of the bare backbone; take another one")
    own = tuple(_setting(called, values, file, settings) for called, values in file.settings.items())
    space = Space(name, search, dimensions, own)
    _check(space, settings)
    return space


def only(space: Space, names: Sequence[str]) -> Space:
    """Return a space with these of its named settings alone; the whole if none is given."""
    known = [setting.name for setting in space.settings]
    for name in names:
        if name not in known:
            raise CseError(f"--only: no setting {name!r} in space {space.name}{nearest(name, known)}")
    kept = tuple(setting for setting in space.settings if setting.name in names)
    return replace(space, dimensions=(), settings=kept) if names else space


def reached(space: Space, settings: Settings) -> list[Settings]:
    """Return the settings of every grid trial, or those with each listed value and both ends of each range."""
    if space.search == "grid":
        return [settings_with(settings, each.values, called=f"tune: {each.name}") for each in space.grid()]
    return [settings_with(settings, {part.key: value}) for part in space.dimensions for value in part.ends]


def _setting(name: str, values: Mapping[str, Any], file: SpaceFile, settings: Settings) -> Setting:
    own = {key: value for key, value in values.items() if key != PRESET}
    with in_terms_of(f"setting {name}: "):
        system = preset_values(values[PRESET], settings.data.view, keep_data=True) if PRESET in values else {}
    whole, now = system | file.set | own, flatten(settings.model_dump(mode="json"))
    return Setting(name, {key: value for key, value in whole.items() if key in own or value != now.get(key)})


def _holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Return whether ``KEY VALUE`` is so; without VALUE, whether KEY is anything but 0 and none."""
    key, _, value = condition.partition(" ")
    if key not in values:
        raise CseError(f"tune: {condition}: no such setting{nearest(key, values)}; `cse settings` lists all")
    return str(values[key]) == value if value else values[key] not in (0, "none")


def parse_dimension(entry: str) -> Dimension:
    """Parse ``KEY=[VALUE, ...]`` or ``KEY=LOW..HIGH [log]``."""
    key, equals, text = (part.strip() for part in entry.partition("="))
    with in_terms_of("tune.over: "):
        if not equals:
            raise CseError(f"{entry!r}: write KEY=[VALUE, ...] or KEY=LOW..HIGH, optionally followed by `log`")
        _check_key(key)
        found = _RANGE.fullmatch(text)
        if found is None:
            return Dimension(key, _listed(key, text))
        low, high = (int(end) if end.lstrip("+-").isdigit() else float(end) for end in found.group(1, 2))
        if not low < high:
            raise CseError(f"{key}: the range {text} is empty; give the lower end first")
        if found[3] and low <= 0:
            raise CseError(f"{key}: a logarithmic range must start above 0, not at {low:g}")
        kind = str(dict(walk_keys())[key].annotation)
        if "int" not in kind or "float" in kind:
            low, high = float(low), float(high)
        elif not (isinstance(low, int) and isinstance(high, int)):
            raise CseError(f"{key}: takes whole numbers only, found {text}")
        return Dimension(key, (), low, high, bool(found[3]))


def _listed(key: str, text: str) -> tuple[Any, ...]:
    try:
        values = parse_yaml(text, key)
    except CseError:
        values = None
    if not isinstance(values, list):
        raise CseError(f"{key}: {text!r} is neither a list like [8, 12] nor a range like 8..16")
    if not values:
        raise CseError(f"{key}: the list is empty; give the values to try")
    if doubled := _doubled(values):
        raise CseError(f"{key}: {doubled[0]} is listed twice; remove one")
    return tuple(values)


def _doubled(values: Sequence[Any]) -> list[Any]:
    return [value for place, value in enumerate(values) if value in values[:place]]


# ---- refusals -------------------------------------------------------------------------------------------------------


def check_seeds(space: Space, settings: Settings, seeds: int, *, confirmed: bool) -> None:
    """Refuse to train settings with further seeds where that cannot be.

    Args:
        confirmed: whether only the best of the search are trained with them.
    """
    if seeds == 1:
        return
    if SEED in space.keys:
        raise CseError(f"--seeds: {SEED} is searched already; give one of the two")
    if space.search != "grid" and not confirmed:
        raise CseError(
            "--seeds: this search decides by one seed; give lists of values, or train its best with --confirm"
        )


def _check(space: Space, settings: Settings) -> None:
    """Refuse spaces that cannot be searched, before training starts."""
    if not space.dimensions and not space.settings:
        raise CseError("tune: the search space is empty; give tune.over or another tune.space")
    if doubled := _doubled(space.keys):
        raise CseError(f"tune.over: {doubled[0]} appears twice; keep one")
    with in_terms_of("tune: "):
        for key in space.keys:
            _refuse(key, _unused(key, space, settings))
    now = flatten(settings.model_dump(mode="json"))
    for setting in space.settings:
        with in_terms_of(f"setting {setting.name}: "):
            for key in (key for key, value in setting.values.items() if key not in now or value != now[key]):
                if key != "train.parameters":
                    _check_key(key)
            settings_with(settings, setting.values, called=f"tune: {setting.name}")
    reached(space, settings)


def _check_key(key: str) -> None:
    """Refuse a key in which trials cannot differ, whatever the system."""
    known, group = [name for name, _ in walk_keys()], key.partition(".")[0]
    if key not in known:
        raise CseError(f"{key}: no such setting{nearest(key, [*known, PRESET])}; `cse settings` lists all")
    same = "must be the same in all trials{}; remove it, or put it under `set` of a space's file"
    _refuse(
        key,
        group == "data" and same.format(", since it changes the data, not the training"),
        group not in SYSTEM_GROUPS and same.format(", since it does not change what the dev pairs measure"),
        key in _FIXED and same.format(""),
    )


def _unused(key: str, space: Space, settings: Settings) -> str:
    """Return why the system does not use a key, so that all trials would be the same; empty if it does."""
    group, part = key.split(".")[:2]
    if group == "prompt" and part not in ("kind", "cls") and settings.prompt.kind == "none":
        return "the system has no prompt (prompt.kind none); remove it or choose another space"
    weight, trained = f"objective.{part}.weight", settings.objective.over(settings.data.more_terms).terms()
    unused = group == "objective" and key != weight and weight not in space.keys and part not in trained
    return f"the term has weight 0 ({weight}); give it a weight, or search another key" if unused else ""


def _refuse(key: str, *reasons: str | bool) -> None:
    for reason in filter(None, reasons):
        raise CseError(f"{key}: {reason}")
