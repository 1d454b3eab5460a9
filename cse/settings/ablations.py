"""Ablations: grids of settings around those in ``params.yaml``, defined in ``ablations.yaml`` next to this file."""

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
class GridCell:
    """One setting of an ablation."""

    label: str
    value: float | None  # for plots; None: no number
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """An ablation."""

    name: str
    title: str
    about: str
    key: str | None  # takes the values; None: the cells are categories
    values: tuple[float, ...]  # the papers' numbers
    cells: tuple[GridCell, ...]
    needs: Mapping[str, Any]
    hint: str

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
        cells = list(self.cells)
        cells += [GridCell(f"{self.title} {value:g}", float(value), {str(self.key): value}) for value in numbers]
        return cells


def ablation_names() -> list[str]:
    """Return the names of all ablations."""
    return list(_grids())


def load_ablation(name: str) -> Grid:
    """Return an ablation by name."""
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
            cells=tuple(GridCell(cell["label"], None, dict(cell["set"])) for cell in entry.get("cells", ())),
            needs=entry["needs"],
            hint=entry["hint"],
        )
        for name, entry in YAML(typ="safe", pure=True).load(text).items()
    }
