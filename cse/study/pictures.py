"""A study in two pictures: what was gained against what was kept, by setting and along the training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes

from cse.report.canvas import COLOURS, INK, Picture, canvas
from cse.study.ledger import Line, Row, lines_of
from cse.study.measures import gained, kept
from cse.study.plan import BARE

_GAINED, _KEPT = "dev score, points over the bare backbone", "own tasks (dev), points over the bare backbone"


def draw_trade_off(rows: Sequence[Row], named: Sequence[str] = ()) -> Picture | None:
    """Draw every setting as a point with its spread over seeds; None without the bare backbone or a task.

    Args:
        rows: of one round or several.
        named: settings to write the name of; none: those that no other beats in both directions.
    """
    bare = next((row for row in rows if row.setting == BARE), None)
    lines = [line for line in lines_of(rows) if line.rows]
    if bare is None or not lines or kept(bare.dev, bare.dev) is None:
        return None
    points = [_point(line, bare) for line in lines]
    best = [
        line.setting
        for line, (x, _, y, _) in zip(lines, points, strict=True)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, _, b, _ in points)
    ]
    rounds = list(dict.fromkeys(line.round for line in lines))
    with canvas(7.2, 5.0) as (figure, save):
        axes = figure.add_subplot()
        for number, name in enumerate(rounds):
            own = [point for line, point in zip(lines, points, strict=True) if line.round == name]
            keeps, keeps_std, gains, gains_std = ([point[part] for point in own] for part in range(4))
            axes.errorbar(
                keeps,
                gains,
                gains_std,
                keeps_std,
                fmt="o",
                color=COLOURS[number],
                markersize=4,
                elinewidth=0.8,
                label=name,
            )
        for line, (x, _, y, _) in zip(lines, points, strict=True):
            if line.setting in (named or best):
                axes.annotate(line.setting, (x, y), (4, 3), textcoords="offset points", fontsize=7)
        _frame(axes)
        if len(rounds) > 1:
            axes.legend(title="round")
        table = [
            [line.round, line.setting, len(line.rows), *(f"{value:.3f}" for value in point)]
            for line, point in zip(lines, points, strict=True)
        ]
        head = ("round", "setting", "seeds", "kept", "kept_std", "gained", "gained_std")
        caption = "One point per setting; bars are standard deviations over seeds. The bare backbone is at (0, 0)."
        return save("trade-off", "What training gains and what it forgets", caption, head, table)


def draw_along_training(rows: Sequence[Row]) -> Picture | None:
    """Draw the path of each setting that has snapshots, from its first weights on; None if none has."""
    bare = next((row for row in rows if row.setting == BARE), None)
    paths = [row for row in rows if row.snapshots]
    if bare is None or not paths or kept(bare.dev, bare.dev) is None:
        return None
    table = []
    with canvas(7.2, 5.0) as (figure, save):
        axes = figure.add_subplot()
        for number, row in enumerate(paths):
            keeps = [kept(dev, bare.dev) or 0.0 for _, dev in row.snapshots]
            gains = [gained(dev, bare.dev) for _, dev in row.snapshots]
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(keeps, gains, "-o", color=colour, markersize=3, linewidth=1.2, label=row.setting)
            for (step, _), px, py in zip(row.snapshots, keeps, gains, strict=True):
                axes.annotate(str(step), (px, py), (3, 3), textcoords="offset points", fontsize=6, color=colour)
                table.append([row.setting, row.seed, step, f"{px:.3f}", f"{py:.3f}"])
        _frame(axes)
        axes.legend()
        caption = "Numbers are steps. The bare backbone is at (0, 0)."
        head = ("setting", "seed", "step", "kept", "gained")
        return save("along-training", "The same over the steps of a training", caption, head, table)


def _point(line: Line, bare: Row) -> tuple[float, float, float, float]:
    """Return mean and deviation of what was kept, then of what was gained."""
    keeps = [kept(row.dev, bare.dev) or 0.0 for row in line.rows]
    gains = [gained(row.dev, bare.dev) for row in line.rows]
    spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (keeps, gains)]
    return statistics.fmean(keeps), spread[0], statistics.fmean(gains), spread[1]


def _frame(axes: Axes) -> None:
    for line in (axes.axhline, axes.axvline):
        line(0.0, color=INK, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0)
    axes.set_xlabel(_KEPT)
    axes.set_ylabel(_GAINED)
