"""The result of an adaptation on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from cse.adapt.run import Adapted
from cse.data.tasks.kinds import PROXY
from cse.evaluation.compared import STS, Compared


def summary(adapted: Adapted) -> str:
    """Return what was won, what it cost in general quality, whether full fine-tuning wins more, and where it lies."""
    own = [one for one in adapted.won if one.task != STS]
    general = [one for one in adapted.won if one.task == STS]
    lines = [_verdict(own), *(f"  {one.sentence()}" for one in own)]
    lines += [f"general similarity: {one.sentence()}" for one in general] or [
        "general similarity: not measured; set data.evaluation_path to SentEval's folder to see what it lost"
    ]
    if adapted.full:
        lines.append("full fine-tuning against prompts:")
        lines += [f"  {one.sentence()}" for one in adapted.full]
    if any(one.task.endswith(PROXY) for one in own):
        lines.append(
            "proxy: held-out rows of the same making stand for your task; name a task of your own with --task to know"
        )
    lines += [f"note: {note}" for note in adapted.notes]
    minutes = adapted.seconds / 60
    lines.append(f"{minutes:.0f} minutes; model {adapted.folder / 'bundle'}, report {adapted.folder / 'report'}")
    return "\n".join(lines)


def _verdict(own: Sequence[Compared]) -> str:
    """Return one sentence on the first task: its main measure, or another one that moved where that did not."""
    main = next((one for one in own if one.main), None)
    if main is None:
        return "adapted, but nothing of your own was measured"
    moved = [one for one in own if one.task == main.task and one.comparison.verdict in ("better", "worse")]
    if not moved:
        return f"It made no difference on {main.task} that {main.comparison.items:,} items can show."
    one = main if main in moved else max(moved, key=lambda one: one.comparison.difference)
    change = one.comparison.difference
    helped = "It helped" if one is main else "It helped in part"
    told = f"rose by {change:.2f}" if change > 0 else f"fell by {-change:.2f}"
    rest = "" if one is main else f"; {main.measure} shows no difference at this size"
    return f"{helped if change > 0 else 'It did not help'}: {one.task} {one.measure} {told}{rest}."
