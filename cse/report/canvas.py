"""The style of all figures, which are saved as SVG, PNG and CSV data.

An SVG has no background and draws text and axes in one colour, which the page replaces with the reader's.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cse.errors import one_line

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
def panels(count: int, height: float = 2.4) -> Iterator[tuple[Figure, list[Axes], Save]]:
    """Yield a figure with ``count`` panels, at most three per row, with shared axes."""
    columns = 2 if count in (2, 4) else min(3, count)
    lines = -(-count // columns)
    with canvas(8.2 if columns > 1 else NARROW, height * lines + 0.8) as (figure, save):
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in grid[count:]:
            axes.set_axis_off()
        yield figure, list(grid), save
