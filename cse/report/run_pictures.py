"""Figures of one run, from the files of ``dvc plots``: scores by task, and training."""

from __future__ import annotations

from pathlib import Path

from matplotlib.ticker import MaxNLocator

from cse.evaluation.dev_facts import SPEARMAN, dev_column, dev_label, read_dev_curve
from cse.files import read_csv
from cse.report.canvas import COLOURS, Picture, canvas, short


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
