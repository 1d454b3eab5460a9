"""Results of ablations: cells of a grid with the scores of each seed, written by ``cse ablate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cse.evaluation.measures import headline_name
from cse.report.systems import Spread
from cse.runtime.seal import read_sealed

CELLS_FILE = "cells.json"


@dataclass(frozen=True)
class AblationCell:
    """One setting of an ablation.

    Attributes:
        value: the setting as a number; None if it is not one.
        runs_by_seed: scores of each run by task, with ``Avg.`` and ``dev``.
    """

    label: str
    value: float | None
    runs_by_seed: dict[int, dict[str, float]]

    @property
    def runs(self) -> str:
        """The number of runs behind the scores, in words."""
        count = len(self.runs_by_seed)
        return f"{count} seed{'s' if count > 1 else ''}"

    @property
    def headline(self) -> str | None:
        """Name of the headline score; None without scores."""
        return headline_name(next(iter(self.runs_by_seed.values()), {}))

    def spread(self, score: str) -> Spread | None:
        """Return a score over the runs that have it."""
        values = tuple(scores[score] for scores in self.runs_by_seed.values() if score in scores)
        return Spread(values) if values else None


@dataclass(frozen=True)
class Ablation:
    """An ablation.

    Attributes:
        name: as in ``cse ablate NAME``.
        cells: cells in grid order.
    """

    name: str
    title: str
    backbone: str
    data: str
    cells: tuple[AblationCell, ...]

    @property
    def numeric(self) -> bool:
        """Whether the cells form a curve over numbers."""
        return sum(cell.value is not None for cell in self.cells) > 1


def read_ablations(folder: Path) -> list[Ablation]:
    """Read the ablations in a folder, by name; none if the folder is missing."""
    return [read_ablation(path) for path in sorted(folder.glob(f"[!.]*/{CELLS_FILE}"))]


def read_ablation(path: Path) -> Ablation:
    """Read one ablation from its ``cells.json``."""
    tree = read_sealed(path, f"run `cse ablate {path.parent.name}` again")
    cells = tuple(
        AblationCell(cell["label"], cell["value"], {int(seed): scores for seed, scores in cell["runs"].items()})
        for cell in tree["cells"]
    )
    return Ablation(tree["ablation"], tree["title"], tree["backbone"], tree["data"], cells)
