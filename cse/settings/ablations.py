"""Ablations: grids of settings around those of ``params.yaml``; ``ablations.yaml`` beside this file holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML

from cse.errors import CseError, nearest
from cse.settings.load import flatten
from cse.settings.tree import Settings

_POSITIVE = "above 0"


@dataclass(frozen=True)
class Cell:
    """One setting of an ablation.

    Attributes:
        label: what to print.
        value: its place on a number line; None where the setting is no number.
        changes: values by dotted key.
    """

    label: str
    value: float | None
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """An ablation.

    Attributes:
        name: as in ``cse ablate NAME``.
        title: what is varied, for axes.
        about: the same in a sentence, with its source.
        key: the setting that takes ``values``; None where cells are kinds.
        values: numbers of the papers.
        cells: settings beside the numbers.
        needs: what the settings around must have, by key.
        hint: a command that gives such settings.
    """

    name: str
    title: str
    about: str
    key: str | None
    values: tuple[float, ...]
    cells: tuple[Cell, ...]
    needs: Mapping[str, Any]
    hint: str

    def grid(self, settings: Settings, values: Sequence[float] | None = None) -> list[Cell]:
        """Return the cells to run, each checked with the settings around it.

        Args:
            settings: of ``params.yaml``.
            values: in the place of the papers' numbers.

        Raises:
            CseError: settings that the ablation cannot vary, values for one that has none, or a value that its key
                does not take.
        """
        present = flatten(settings.model_dump())
        for key, wanted in self.needs.items():
            if not (present[key] > 0 if wanted == _POSITIVE else present[key] == wanted):
                raise CseError(f"ablation {self.name}: {key} is {present[key]}, needed is {wanted}; try `{self.hint}`")
        if values is not None and self.key is None:
            raise CseError(f"ablation {self.name}: has kinds and no numbers; leave --values out")
        numbers = self.values if values is None else values
        cells = list(self.cells)
        cells += [Cell(f"{self.title} {value:g}", float(value), {str(self.key): value}) for value in numbers]
        return cells


def ablation_names() -> list[str]:
    """Return the names of all ablations."""
    return list(_grids())


def load_ablation(name: str) -> Grid:
    """Return an ablation by name.

    Raises:
        CseError: there is none of this name.
    """
    if name not in _grids():
        raise CseError(f"{name}: no such ablation{nearest(name, _grids())}; there are {', '.join(_grids())}")
    return _grids()[name]


@cache
def _grids() -> Mapping[str, Grid]:
    text = files("cse.settings").joinpath("ablations.yaml").read_text("utf-8")
    return {
        name: Grid(
            name=name,
            title=entry["title"],
            about=entry["about"],
            key=entry.get("key"),
            values=tuple(entry.get("values", ())),
            cells=tuple(Cell(cell["label"], None, dict(cell["set"])) for cell in entry.get("cells", ())),
            needs=entry["needs"],
            hint=entry["hint"],
        )
        for name, entry in YAML(typ="safe", pure=True).load(text).items()
    }
