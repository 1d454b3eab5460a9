"""Figures of the report and of one run (scores by task, training), each with its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cse.evaluation.dev_facts import SPEARMAN, dev_column, dev_label, read_dev_curve
from cse.evaluation.record import DENSITY_FILE, TSNE_FILE
from cse.evaluation.space import ALL
from cse.files import read_csv
from cse.report.canvas import COLOURS, DASHES, INK, NARROW, Picture, canvas, panels, short
from cse.report.systems import System, number_at

LEVELS = ("#7B5CC4", "#0072B2", "#009E73", "#E69F00", "#D55E00")  # dissimilar to similar; visible on white and on black
MOST_PANELS = 9


def draw_all(systems: Sequence[System]) -> list[Picture]:
    """Draw every figure that has data, in report order."""
    drawn = (draw_domain_shift, draw_density_by_gold, draw_density_of_models, draw_tsne)
    return [picture for draw in drawn if (picture := draw(systems)) is not None]


def draw_domain_shift(systems: Sequence[System]) -> Picture | None:
    """Bars of standard STS next to CxC-STS (PromCSE figure 1)."""
    labels = ("standard STS, average of seven tasks", "CxC-STS, image captions")
    figures = (number_at("Avg.", "all"), number_at("cxc", "mean"))
    found = [(system, [spread for one in figures if (spread := system.spread(one))]) for system in systems]
    bars = [(system, spreads) for system, spreads in found if len(spreads) == len(labels)]
    if not bars:
        return None
    with canvas(NARROW, 4.2) as (figure, save):
        axes = figure.subplots()
        width = 0.8 / len(bars)
        values = [value for _, spreads in bars for spread in spreads for value in spread.values]
        lowest, highest = min(values), max(values)
        floor = np.floor(lowest - 0.35 * (highest - lowest) - 0.5)
        for number, (system, spreads) in enumerate(bars):
            places = np.arange(len(labels)) + (number - (len(bars) - 1) / 2) * width
            heights = [spread.mean - floor for spread in spreads]
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(places, heights, 0.9 * width, bottom=floor, color=colour, label=short(system.name))
            for place, spread in zip(places, spreads, strict=True):
                if spread.std is not None:
                    axes.errorbar(place, spread.mean, spread.std, color=INK, linewidth=1, capsize=3)
                    axes.plot([place] * len(spread.values), spread.values, "o", color=INK, markersize=2.5)
                top = max(*spread.values, spread.mean + (spread.std or 0.0))
                axes.annotate(
                    f"{spread.mean:.2f}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=8
                )
        axes.set_ylim(floor, highest + 0.12 * (highest - floor))
        axes.set_xticks(range(len(labels)), [label.replace(", ", ",\n") for label in labels])
        axes.set_ylabel("Spearman * 100")
        _legend_below(figure, axes)
        table = [
            (system.name, label, run.name, f"{value:.4f}")
            for system, spreads in bars
            for label, spread in zip(labels, spreads, strict=True)
            for run, value in zip(system.records, spread.values, strict=False)
        ]
        return save(
            "domain-shift",
            "Domain shift",
            f"Bars: mean over seeds, starting at {floor:g}; dots: single seeds; lines: ± one standard deviation. "
            "CxC-STS: mean over samples of caption pairs.",
            ("system", "measure", "run", "spearman"),
            table,
        )


def draw_density_by_gold(systems: Sequence[System]) -> Picture | None:
    """Cosine density by gold similarity, one panel per system (PromCSE figure 3)."""
    drawn = _with_table(systems, DENSITY_FILE)
    if not drawn:
        return None
    with panels(len(drawn)) as (figure, grid, save):
        labels: dict[str, Any] = {}
        for (system, points), axes in zip(drawn, grid, strict=False):
            curves = [(group, list(curve)) for group, curve in groupby(points, itemgetter("group")) if group != ALL]
            for level, (group, curve) in enumerate(curves):
                x, y = _xy(curve, "cosine", "density")
                (line,) = axes.plot(x, y, color=LEVELS[level], linewidth=1.6)
                axes.fill_between(x, y, color=LEVELS[level], alpha=0.12, linewidth=0)
                labels.setdefault(f"gold {group}", line)
            axes.set_title(short(system.name))
        _outer_labels(grid[: len(drawn)], "cosine of a pair", "density")
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


def draw_tsne(systems: Sequence[System]) -> Picture | None:
    """t-SNE of the sentences, one panel per system (D2CSE figure 2a)."""
    drawn = _with_table(systems, TSNE_FILE)
    if not drawn:
        return None
    subsets = list(dict.fromkeys(row["subset"] for _, points in drawn for row in points))[: len(COLOURS)]
    with panels(len(drawn), height=3.0) as (figure, grid, save):
        for (system, points), axes in zip(drawn, grid, strict=False):
            for number, subset in enumerate(subsets):
                x, y = _xy([row for row in points if row["subset"] == subset], "x", "y")
                axes.plot(
                    x, y, "o^sDvPX*"[number], color=COLOURS[number], label=short(subset),
                    markersize=2, alpha=0.6, linewidth=0, rasterized=True,
                )  # fmt: skip
            axes.set_title(short(system.name))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        marks, named = grid[0].get_legend_handles_labels()
        legend = figure.legend(
            marks, named, loc="outside lower center", ncols=min(4, len(named)), fontsize=9, markerscale=3
        )
        for mark in legend.get_lines():
            mark.set_alpha(1)
        return save(
            "projection",
            "Sentences in the plane (t-SNE)",
            f"{_drawn_task(drawn)}, up to 500 distinct sentences, t-SNE on unit vectors, one run of each system, "
            "coloured by source of the text. Distances between far groups mean nothing.",
            ("system", "x", "y", "subset", "sentence"),
            [(system.name, *row.values()) for system, points in drawn for row in points],
        )


def _with_table(
    systems: Sequence[System], file: str, most: int = MOST_PANELS
) -> list[tuple[System, list[dict[str, str]]]]:
    found = ((system, system.first.table(file)) for system in systems)
    return [(system, table) for system, table in found if table][:most]


def _drawn_task(drawn: Iterable[tuple[System, Any]]) -> str:
    pairs = [system.first.table("pairs.csv") for system, _ in drawn]
    tasks = list(dict.fromkeys(rows[0]["task"] if rows else "the first task" for rows in pairs))
    return f"Pairs of {', '.join(tasks)}" + (" test" if tasks == ["STS-B"] else "")


def _xy(table: list[dict[str, str]], x: str, y: str) -> tuple[list[float], list[float]]:
    return [float(row[x]) for row in table], [float(row[y]) for row in table]


def _legend_below(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels))
    columns = 3 if longest < 18 else 2 if longest < 30 else 1
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), fontsize=9)


def _outer_labels(panels: Sequence[Axes], x: str, y: str) -> None:
    """Label the outer axes: left panels, and panels with none below."""
    layout = panels[0].get_gridspec()
    columns = 1 if layout is None else layout.ncols
    for number, axes in enumerate(panels):
        if number % columns == 0:
            axes.set_ylabel(y)
        if number + columns >= len(panels):
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)


def draw_scores(path: Path) -> Picture | None:
    """Bars by task, one per model, from a CSV of ``task, model, spearman``; None without scores."""
    rows = read_csv(path)
    tasks, models = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "model"))
    if not rows:
        return None
    with canvas(6.4, 0.9 + 0.22 * len(models) * len(tasks) + 0.14 * len(tasks)) as (figure, save):
        axes = figure.add_subplot()
        height = 0.8 / len(models)
        for number, model in enumerate(models):
            scores = {row["task"]: float(row["spearman"]) for row in rows if row["model"] == model}
            places = [tasks.index(task) + number * height for task in scores]
            bars = axes.barh(
                places, list(scores.values()), height, label=short(model), color=COLOURS[number % len(COLOURS)]
            )
            axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
        axes.set_yticks([place + 0.4 - height / 2 for place in range(len(tasks))], list(map(short, tasks)))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("Spearman · 100")
        if len(models) > 1:
            figure.legend(loc="outside lower center", ncols=len(models))
        return save(
            "scores", "Scores by task", "Spearman * 100", ["task", "model", "spearman"],
            ([row["task"], row["model"], row["spearman"]] for row in rows),
        )  # fmt: skip


def draw_training(folder: Path) -> Picture | None:
    """Loss and dev score over the updates, from ``train.csv`` and ``dev.csv``; None if nothing was trained."""
    losses = [(int(row["step"]), float(row["loss"])) for row in read_csv(folder / "train.csv")]
    scores = read_dev_curve(folder / "dev.csv")
    column = next((name for row in read_csv(folder / "dev.csv") for name in row if name != "step"), "spearman")
    own = column != dev_column(SPEARMAN)
    name, caption = (
        (dev_label(column), "dev score") if own else (dev_label(SPEARMAN), "Spearman * 100 on the dev pairs")
    )
    if not losses:
        return None
    with canvas(6.4, 2.6) as (figure, save):
        left = figure.add_subplot()
        left.plot(*zip(*losses, strict=True), color=COLOURS[0], label="loss")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set_xlabel("update")
        left.set_ylabel("loss")
        if scores:
            right = left.twinx()
            right.spines.right.set_visible(True)
            right.plot(*zip(*scores, strict=True), color=COLOURS[1], marker="o", label=f"{name} · 100")
            right.set_ylabel(f"{name} · 100")
        figure.legend(loc="outside upper center", ncols=2)
        table = sorted({step for step, _ in losses} | {step for step, _ in scores})
        loss_at, score_at = dict(losses), dict(scores)
        return save(
            "training", "Training", f"loss, and {caption}", ["step", "loss", column],
            ([step, loss_at.get(step, ""), score_at.get(step, "")] for step in table),
        )  # fmt: skip
