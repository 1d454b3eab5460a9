"""The result of an adaptation on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from cse.adapt.run import Adapted
from cse.data.tasks.kinds import PROXY
from cse.evaluation.compared import ONE_TRAINING, STS, Compared, corrected


def summary(adapted: Adapted) -> str:
    """Return what was won, what it cost in general quality, whether full fine-tuning wins more, and where it lies.

    The main measure was named before training and stands alone; all others are corrected for their number.
    """
    won = _with_others_corrected(adapted.won, adapted.main)
    own = [one for one in won if one.task != STS]
    general = [one for one in won if one.task == STS]
    lines = [_verdict(won, adapted.main), *(f"  {one.sentence()}" for one in own)]
    lines += [f"general similarity: {one.sentence()}" for one in general] or [
        "general similarity: not measured; set data.evaluation_path to SentEval's folder to see what it lost"
    ]
    if adapted.full:
        lines.append("full fine-tuning against prompts:")
        lines += [f"  {one.sentence()}" for one in _with_others_corrected(adapted.full, adapted.main)]
    if any(one.task.endswith(PROXY) for one in own):
        lines.append(
            "proxy: held-out rows of the same making stand for your task; name a task of your own with --task to know"
        )
    lines += [f"note: {note}" for note in adapted.notes]
    minutes = adapted.seconds / 60
    lines.append(f"{minutes:.0f} minutes; model {adapted.folder / 'bundle'}, report {adapted.folder / 'report'}")
    return "\n".join(lines)


def _with_others_corrected(found: Sequence[Compared], main: tuple[str, str] | None) -> list[Compared]:
    """Return comparisons in their order, those of other measures than the main one corrected for their number."""
    others = iter(corrected([one for one in found if (one.task, one.measure) != main]))
    return [one if (one.task, one.measure) == main else next(others) for one in found]


def _verdict(found: Sequence[Compared], main: tuple[str, str] | None) -> str:
    """Return one sentence: what became of the main measure, and whatever else fell."""
    one = next((one for one in found if (one.task, one.measure) == main), None)
    if one is None:
        return "adapted, but nothing of your own was measured"
    change, verdict = one.comparison.difference, one.comparison.verdict
    said = {
        "better": f"It helped: {one.task} {one.measure} rose by {change:.2f}",
        "worse": f"It did not help: {one.task} {one.measure} fell by {-change:.2f}",
    }.get(verdict, f"It made no difference on {one.task} {one.measure} that {one.comparison.items:,} items can show")
    fell = [each for each in found if each is not one and each.comparison.verdict == "worse"]
    for number, each in enumerate(fell):
        joined = ", " if number else f", {'but' if verdict == 'better' else 'and'} "
        said += f"{joined}{_name(each, one)} {'' if number else 'fell '}by {-each.comparison.difference:.2f}"
    return said + (f"; holds for {ONE_TRAINING}." if one.comparison.one_training else ".")


def _name(one: Compared, main: Compared) -> str:
    if one.task == STS:
        return "general similarity (STS)"
    return one.measure if one.task == main.task else f"{one.task} {one.measure}"
