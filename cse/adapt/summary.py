"""The result of an adaptation on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from cse.adapt.ladder import BARE, IN_WORDS, ORDER, shares_backbone
from cse.adapt.run import Adapted
from cse.data.tasks.kinds import PROXY
from cse.evaluation.comparison import ONE_TRAINING, STS, Compared, corrected
from cse.evaluation.retrieval import NDCG, OF_WORDS, WITH_WORDS
from cse.evaluation.score import CLASS_MEAN, KNN, PROBE

_UNMEASURED = (
    "Queries are adapted, but whether they find more was not measured. On two collections where it was, vectors alone "
    "found clearly more (nDCG@10 51 -> 54 and 41 -> 48), and together with words as much or more (57 -> 57 and 56 -> "
    "59); --task or --dev-queries with judged queries would tell."
)
ACCURACIES = (KNN, CLASS_MEAN, PROBE)  # shares of texts whose label is told right


def summary(adapted: Adapted) -> str:
    """Return what was won, what it cost in general quality, what was tried, what was chosen, and where it lies.

    The main measure was named before training and stands alone; all others are corrected for their number.
    """
    won = _with_others_corrected(adapted.won, adapted.main)
    own = [one for one in won if one.task != STS]
    general = [one for one in won if one.task == STS]
    if adapted.searched:
        lines = [_of_search(adapted, won), *_words(adapted), *(f"  {one.sentence()}" for one in own)]
        lines.append("general similarity: unchanged; texts in any other role than query keep their vectors")
    elif adapted.chosen.system == BARE:
        lines = ["Nothing that was tried beats the bare backbone on held-out rows: keep it."]
    else:
        lines = [_verdict(won, adapted.main), *(f"  {one.sentence()}" for one in own)]
        lines += [f"general similarity: {one.sentence()}" for one in general] or [
            "general similarity: not measured; set data.evaluation_path to SentEval's folder to see what it lost"
        ]
    lines += _enough(own)
    if adapted.other is not None:
        lines.append(f"{IN_WORDS[adapted.other.system]} against {IN_WORDS[adapted.chosen.system]}:")
        lines += [f"  {one.sentence()}" for one in _with_others_corrected(adapted.others, adapted.main)]
    if adapted.searched and adapted.chosen.dev is None:
        lines.append("tried, and nothing chose:")
    else:
        lines.append(
            f"tried, with the score on {'judged queries' if adapted.searched else 'held-out rows'} that chose:"
        )
    for system in ORDER:
        if system in adapted.ladder.rungs:
            rung = adapted.ladder.rungs[system]
            lines.append(f"  {rung}{' (chosen)' if rung is adapted.chosen else ''}")
    lines.append(_shipped(adapted))
    if any(one.task.endswith(PROXY) for one in own):
        lines.append(
            "proxy: held-out rows of the same making stand for your task; name a task of your own with --task to know"
        )
    if not adapted.searched and any(one.measure.startswith("nDCG") for one in own):
        lines.append(
            "note: words and vectors together often find more, without any training: `cse index` and `cse search` on "
            "your documents"
        )
    lines += [f"note: {note}" for note in adapted.notes]
    if adapted.stopped:
        lines.append("note: stopped before the end; the same command goes on")
    minutes, bundle = adapted.seconds / 60, adapted.folder / "bundle"
    lines.append(f"{minutes:.0f} minutes; model {bundle}, report {adapted.folder / 'report'}; next: cse serve {bundle}")
    return "\n".join(lines)


def _of_search(adapted: Adapted, won: Sequence[Compared]) -> str:
    """Return the verdict on adapted queries, or that there is none."""
    if adapted.main is None:
        return _UNMEASURED
    if adapted.chosen.system == BARE:
        return "Nothing that was tried finds more than the bare backbone by the judged queries: keep it."
    return _verdict(won, adapted.main)


def _words(adapted: Adapted) -> list[str]:
    """Return a line for each search task: nDCG@10 of words, of vectors and of both, before and after."""
    values = {
        system.first.name.partition("-")[0]: {
            task: found["values"] for task, found in system.first.scores.get("tasks", {}).items()
        }
        for system in adapted.systems
    }
    lines = []
    for task, before in values.get(BARE, {}).items():
        after = values.get(adapted.chosen.system, {}).get(task, before)
        if OF_WORDS in before:
            alone, both = (f"{before[name]:.2f} -> {after[name]:.2f}" for name in (NDCG, WITH_WORDS))
            lines.append(
                f"{task} {NDCG}: words alone {before[OF_WORDS]:.2f}; vectors {alone}; words and vectors {both}"
            )
    return lines


def _enough(own: Sequence[Compared]) -> list[str]:
    """Return a line for each task whose labels a regression on the bare vectors tells as well as anything after."""
    lines = []
    for task in dict.fromkeys(one.task for one in own):
        found = {one.measure: one.comparison for one in own if one.task == task and one.measure in ACCURACIES}
        best = max((each.after for each in found.values()), default=0.0)
        if PROBE in found and found[PROBE].before >= best:
            lines.append(
                f"note: a logistic regression on the bare vectors labels {found[PROBE].before:.2f} % of {task} "
                f"right, the adapted vectors at best {best:.2f} %: to classify, the bare backbone is enough"
            )
    return lines


def _shipped(adapted: Adapted) -> str:
    """Return what the bundle holds, and why."""
    chosen = adapted.chosen
    if adapted.model == BARE:
        did = "found no more" if adapted.searched else "did worse"
        why = "" if chosen.system == BARE else f", since {IN_WORDS[chosen.system]} {did}"
        return f"in the bundle: the bare backbone{why}"
    score = "" if adapted.dev is None else f", dev {adapted.dev:.2f}"
    own = "" if shares_backbone(chosen.system) else "; its weights are its own, so no bank can hold it"
    if adapted.searched:
        own = "; documents keep the bare backbone's vectors, so their index stays as it is"
    return f"in the bundle: {adapted.model} ({IN_WORDS[chosen.system]}{score}){own}"


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
