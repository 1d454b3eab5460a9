"""Figures of the report in one style, saved as SVG, PNG and CSV data.

An SVG has no background and draws text and axes in one colour, which the page replaces with the reader's.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cse.errors import one_line
from cse.evaluation.record import DENSITY_FILE
from cse.evaluation.space import ALL
from cse.report.systems import System

INK = "#22262b"  # text and axes
# colour-blind safe (Okabe and Ito 2008); curves also differ in their dashes
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#7B5CC4")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
NARROW = 5.0  # inches: fits a phone at a legible size
_LONGEST = 40  # characters of a name in a figure
_STYLE: Any = {
    "svg.fonttype": "none",  # keep text as text: searchable, in the page's font
    "font.family": "sans-serif",
    "text.parse_math": False,  # show dollar signs in names
    "font.size": 10,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "axes.titlelocation": "left",
    "legend.frameon": False, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip
LEVELS = ("#7B5CC4", "#0072B2", "#009E73", "#E69F00", "#D55E00")  # dissimilar to similar; visible on white and on black
MOST_PANELS = 9


@dataclass(frozen=True)
class Picture:
    """A figure, and its data as csv; ``name`` is the name of its files without suffix."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    data: str


# name, title, caption, column names, rows
Save = Callable[[str, str, str, Sequence[str], Iterable[Sequence[Any]]], Picture]


@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple[Figure, Save]]:
    """Yield a figure in the report's style and a function that saves it; sizes in inches."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page uses the reader's fonts
        figure = Figure(figsize=(width, height), layout="constrained")

        def save(name: str, title: str, caption: str, head: Sequence[str], table: Iterable[Sequence[Any]]) -> Picture:
            vector, pixels, text = io.StringIO(), io.BytesIO(), io.StringIO()
            with mpl.rc_context({"svg.hashsalt": name}):  # deterministic file, ids unique to the figure
                figure.savefig(vector, format="svg", dpi=200, metadata={"Date": None})
            figure.savefig(pixels, format="png", dpi=150, facecolor="white")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(head)
            writer.writerows(table)
            return Picture(name, title, caption, vector.getvalue(), pixels.getvalue(), text.getvalue())

        yield figure, save


def short(name: str) -> str:
    """Return a name for a figure: shortened, and never starting with ``_``, which matplotlib reads as no label."""
    shown = one_line(name)
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


@contextmanager
def panels(count: int, height: float, x: str = "", y: str = "") -> Iterator[tuple[Figure, list[Axes], Save]]:
    """Yield a figure with ``count`` panels, at most three per row, with shared axes, whose outer ones are labelled."""
    columns = 2 if count in (2, 4) else min(3, count)
    lines = -(-count // columns)
    with canvas(8.2 if columns > 1 else NARROW, height * lines + 0.8) as (figure, save):
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in grid[count:]:
            axes.set_axis_off()
        for axes in grid[:count:columns]:
            axes.set_ylabel(y)
        for axes in grid[max(0, count - columns) : count]:  # with none below
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)
        yield figure, list(grid), save


def draw_all(systems: Sequence[System]) -> list[Picture]:
    """Draw every figure that has data, in report order."""
    drawn = (draw_density_by_gold, draw_density_of_models)
    return [picture for draw in drawn if (picture := draw(systems)) is not None]


def draw_density_by_gold(systems: Sequence[System]) -> Picture | None:
    """Cosine density by gold similarity, one panel per system (PromCSE figure 3)."""
    drawn = _with_table(systems, DENSITY_FILE)
    if not drawn:
        return None
    with panels(len(drawn), 2.4, "cosine of a pair", "density") as (figure, grid, save):
        labels: dict[str, Any] = {}
        for (system, points), axes in zip(drawn, grid, strict=False):
            curves = [(group, list(curve)) for group, curve in groupby(points, itemgetter("group")) if group != ALL]
            for level, (group, curve) in enumerate(curves):
                x, y = _xy(curve, "cosine", "density")
                (line,) = axes.plot(x, y, color=LEVELS[level], linewidth=1.6)
                axes.fill_between(x, y, color=LEVELS[level], alpha=0.12, linewidth=0)
                labels.setdefault(f"gold {group}", line)
            axes.set_title(short(system.name))
        figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=len(labels), fontsize=9)
        return save(
            "density-by-gold",
            "Cosine density by gold similarity",
            f"{_drawn_task(drawn)}, one run of each system. Well separated curves mean that cosines "
            "distinguish similar pairs from dissimilar ones.",
            ("system", "group", "pairs", "cosine", "density"),
            [(system.name, *row.values()) for system, points in drawn for row in points],
        )


def draw_density_of_models(systems: Sequence[System]) -> Picture | None:
    """Cosine density of all pairs, one curve per system (D2CSE figure 2b)."""
    drawn = _with_table(systems, DENSITY_FILE, most=len(COLOURS) * len(DASHES))
    if len(drawn) < 2:
        return None
    with canvas(NARROW, 3.8) as (figure, save):
        axes = figure.subplots()
        table = []
        for number, (system, points) in enumerate(drawn):
            rows_of_all = [row for row in points if row["group"] == ALL]
            x, y = _xy(rows_of_all, "cosine", "density")
            colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
            axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.6, label=short(system.name))
            table += [(system.name, row["cosine"], row["density"]) for row in rows_of_all]
        axes.set_xlabel("cosine of a pair")
        axes.set_ylabel("density")
        axes.set_ylim(bottom=0)
        _legend_below(figure, axes)
        return save(
            "density-of-systems",
            "Cosine density of all pairs",
            f"{_drawn_task(drawn)}, one run of each system. A narrow curve at the right means that all sentences have "
            "similar embeddings.",
            ("system", "cosine", "density"),
            table,
        )


def _with_table(
    systems: Sequence[System], file: str, most: int = MOST_PANELS
) -> list[tuple[System, list[dict[str, str]]]]:
    found = ((system, system.first.table(file)) for system in systems)
    return [(system, table) for system, table in found if table][:most]


def _drawn_task(drawn: Iterable[tuple[System, Any]]) -> str:
    tasks = list(dict.fromkeys(system.first.drawn_task for system, _ in drawn))
    return f"Pairs of {', '.join(tasks)}" + (" test" if tasks == ["STS-B"] else "")


def _xy(table: list[dict[str, str]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [float(row[x]) for row in table], [float(row[y]) for row in table]


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels))
    columns = 3 if longest < 18 else 2 if longest < 30 else 1
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=9)
