"""A study in two pictures: what was gained against what was kept, by setting and along the training."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes

from cse.report.canvas import COLOURS, INK, Picture, canvas, short
from cse.report.systems import System
from cse.study.measures import columns, gained, kept
from cse.study.plan import BARE
from cse.study.table import RunRow, SettingRuns, lines_of

_SMALL = 7  # of names beside points, in points
_GAINED, _KEPT = "dev score, points over the bare backbone", "own tasks (dev), points over the bare backbone"


def draw_trade_off(rows: Sequence[RunRow]) -> Picture | None:
    """Draw every setting as a point with its spread over seeds; None without the bare backbone or a task.

    Of several rounds, the settings of the last one are named: few get there. Of a single one, those that no other beats
    in both directions.
    """
    bare = next((row for row in rows if row.setting == BARE), None)
    lines = [line for line in lines_of(rows) if line.rows]
    if bare is None or not lines or kept(bare.dev, bare.dev) is None:
        return None
    points = [_point(line, bare) for line in lines]
    rounds = list(dict.fromkeys(line.round for line in lines))
    named = [
        (line.setting, x, y)
        for line, (x, _, y, _) in zip(lines, points, strict=True)
        if line.round == rounds[-1]
        and (len(rounds) > 1 or not any(a >= x and b >= y and (a, b) != (x, y) for a, _, b, _ in points))
    ]
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
        axes.plot(0, 0, "D", color=INK, markersize=5)
        _frame(axes)
        _name(axes, [*named, (BARE, 0.0, 0.0)])
        if len(rounds) > 1:
            axes.legend(title="round", loc="lower left")
        table = [
            [line.round, line.setting, len(line.rows), *(f"{value:.3f}" for value in point)]
            for line, point in zip(lines, points, strict=True)
        ]
        head = ("round", "setting", "seeds", "kept", "kept_std", "gained", "gained_std")
        caption = "One point per setting; bars are standard deviations over seeds."
        return save("trade-off", "What training gains and what it forgets", caption, head, table)


def draw_along_training(rows: Sequence[RunRow]) -> Picture | None:
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


def draw_test(systems: Sequence[System]) -> Picture:
    """Draw the first figure of a test: a bar for each setting's mean from the bare backbone's, a dot for each seed."""
    scores = [[columns(record.scores) for record in system.records] for system in systems]
    column = next(iter(scores[0][0]))
    by_name = {system.name: [one[column] for one in found] for system, found in zip(systems, scores, strict=True)}
    (bare,) = by_name.pop(BARE)
    names = sorted(by_name, key=lambda name: statistics.fmean(by_name[name]))
    with canvas(7.2, 0.34 * len(names) + 1.2) as (figure, save):
        axes = figure.add_subplot()
        means = [statistics.fmean(by_name[name]) for name in names]
        axes.barh(range(len(names)), [mean - bare for mean in means], left=bare, color=COLOURS[0], alpha=0.75)
        for place, (name, mean) in enumerate(zip(names, means, strict=True)):
            axes.plot(by_name[name], [place] * len(by_name[name]), "o", color=COLOURS[1], markersize=4)
            axes.annotate(
                f"{mean:.2f}", (max(*by_name[name], bare), place), (6, 0), textcoords="offset points", va="center"
            )
        axes.axvline(bare, color=INK, linewidth=1)
        axes.set_yticks(range(len(names)), [short(name) for name in names])
        axes.set_xlabel(f"{column} * 100")
        axes.margins(x=0.15)
        caption = f"Bars are means over seeds, from the bare backbone's {bare:.2f}; dots are seeds."
        table = [(name, number, f"{value:.4f}") for name in names for number, value in enumerate(by_name[name], 1)]
        return save("test", "What was chosen, on the test sets", caption, ("setting", "run", column), table)


def _point(line: SettingRuns, bare: RunRow) -> tuple[float, float, float, float]:
    """Return mean and deviation of what was kept, then of what was gained."""
    keeps = [kept(row.dev, bare.dev) or 0.0 for row in line.rows]
    gains = [gained(row.dev, bare.dev) for row in line.rows]
    spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (keeps, gains)]
    return statistics.fmean(keeps), spread[0], statistics.fmean(gains), spread[1]


def _name(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names beside points, at the first place where a name covers no point and no other name."""
    scale = axes.figure.dpi / 72  # pixels per point
    at = [axes.transData.transform(point[1:]) / scale for point in points]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in at]
    for (name, *point), (x, y) in sorted(zip(points, at, strict=True), key=lambda each: -each[1][1]):
        wide = 0.6 * _SMALL * len(name)
        places = [(right, up) for up in (3, -3 - _SMALL, 12) for right in (4, -4 - wide)]
        boxes = [(x + right, y + up, x + right + wide, y + up + _SMALL) for right, up in places]
        free = next((n for n, box in enumerate(boxes) if not any(_overlap(box, other) for other in taken)), 0)
        taken.append(boxes[free])
        axes.annotate(name, (point[0], point[1]), places[free], textcoords="offset points", fontsize=_SMALL)


def _overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two boxes (left, bottom, right, top) overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _frame(axes: Axes) -> None:
    for line in (axes.axhline, axes.axvline):
        line(0.0, color=INK, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0)
    axes.set_xlabel(_KEPT)
    axes.set_ylabel(_GAINED)
