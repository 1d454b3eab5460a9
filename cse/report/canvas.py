"""What pictures are drawn on: one style, and every picture as SVG, PNG and the data behind it.

An SVG has no background and draws words and axes in one colour, which the page replaces by the reader's own.
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

INK = "#22262b"  # words and axes
# told apart by colour-blind readers (Okabe and Ito 2008); curves differ in their dashes too
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#7B5CC4")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
_LONGEST = 40  # letters of a name in a picture
_STYLE: Any = {
    "svg.fonttype": "none",  # words stay words: they can be searched and take the page's font
    "font.family": "sans-serif",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 10,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "axes.titlelocation": "left",
    "legend.frameon": False, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture and its data.

    Attributes:
        name: of its files.
        title: above it.
        caption: what to see, and in which setting.
        svg: for the page.
        png: for everything else, on white.
        data: as CSV.
    """

    name: str
    title: str
    caption: str
    svg: str
    png: bytes
    data: str


# name, title, caption, names of the columns, rows
Save = Callable[[str, str, str, Sequence[str], Iterable[Sequence[Any]]], Picture]


@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple[Figure, Save]]:
    """Yield a figure in the report's style and what turns it into a picture; sizes in inches."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page has the reader's own fonts
        figure = Figure(figsize=(width, height), layout="constrained")

        def save(name: str, title: str, caption: str, head: Sequence[str], table: Iterable[Sequence[Any]]) -> Picture:
            vector, pixels, text = io.StringIO(), io.BytesIO(), io.StringIO()
            with mpl.rc_context({"svg.hashsalt": name}):  # the same data give the same file, ids differ by picture
                figure.savefig(vector, format="svg", dpi=200, metadata={"Date": None})
            figure.savefig(pixels, format="png", dpi=150, facecolor="white")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(head)
            writer.writerows(table)
            return Picture(name, title, caption, vector.getvalue(), pixels.getvalue(), text.getvalue())

        yield figure, save


def short(name: str) -> str:
    """Return a name as it stands in a picture: cut, and never read as a mark of matplotlib's for no label."""
    shown = one_line(name)
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


@contextmanager
def panels(count: int, height: float = 2.4) -> Iterator[tuple[Figure, list[Axes], Save]]:
    """Yield a figure with some panels, at most three a row, that share their axes."""
    columns = 2 if count in (2, 4) else min(3, count)
    lines = -(-count // columns)
    with canvas(8.2 if columns > 1 else 5.4, height * lines + 0.8) as (figure, save):
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes in grid[count:]:
            axes.set_axis_off()
        yield figure, list(grid), save
