"""What an adaptation says: its result on one screen, and the texts that it helped or harmed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from cse.adapt.clock import duration
from cse.adapt.few import share
from cse.adapt.ladder import BARE, DOCUMENTS, FEW_ROWS, LABELS
from cse.adapt.run import Adapted
from cse.data.store import PreparedData
from cse.data.tasks.kinds import PROXY, LabelledTexts, Retrieval
from cse.data.tasks.store import OWN, open_tasks
from cse.evaluation.comparison import ONE_TRAINING, STS, Compared, corrected
from cse.evaluation.labels import known_labels
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.evaluation.retrieval import NDCG, OF_WORDS, WITH_WORDS
from cse.evaluation.score import ACCURACY, TOLD
from cse.outputs import Kind, publish_folder
from cse.report.page import make_report, write_report
from cse.report.tables import Table

MOST = 20  # rows of a table
_UNTOLD = (
    "The bare backbone ships: no judged query says what finds more. By words and vectors together, as in `cse search`, "
    "adapted queries found 0.1 to 1.3 less on three collections that nobody tuned on. To get adapted queries, give "
    "judged queries: --dev-queries chooses by them, --task measures, and they ship if they find more."
)


def summary(adapted: Adapted) -> str:
    """Return what was won, what it cost in general quality, what was tried, what was chosen, and where it lies.

    The main measure was named before training and stands alone; all others are corrected for their number.
    """
    chosen, searched = adapted.chosen, adapted.kind == DOCUMENTS
    won = _with_others_corrected(adapted.won, adapted.main)
    own, general = ([one for one in won if (one.task == STS) is of] for of in (False, True))
    if searched and adapted.main is None:
        lines = [_UNTOLD if chosen.dev is None else "Judged queries chose; --task with others would measure it."]
    elif chosen.system == BARE:
        more, by = ("finds more than", "by the judged queries") if searched else ("beats", "on held-out rows")
        lines = [f"Nothing that was tried {more} the bare backbone {by}: keep it.", *_bare(adapted)]
    else:
        lines = [_verdict(won, adapted.main)]
    lines += [*_words(adapted)] if searched else []
    lines += [f"  {one.sentence()}" for one in own]
    if searched and chosen.system != BARE:
        lines.append("general similarity: unchanged; texts in any other role than query keep their vectors")
    elif chosen.system != BARE:
        lines += [f"general similarity: {one.sentence()}" for one in general] or [
            "general similarity: not measured; set data.evaluation_path to SentEval's folder to see what it lost"
        ]
    if searched and chosen.dev is None and chosen.system != BARE:
        lines.append("tried, and nothing chose:")
    else:
        lines.append(f"tried, with the score on {'judged queries' if searched else 'held-out rows'} that chose:")
    lines += [f"  {one}{' (chosen)' if one is chosen else ''}" for one in adapted.ladder]
    lines.append(_shipped(adapted))
    if any(one.task.endswith(PROXY) for one in own):
        lines.append(
            "proxy: held-out rows of the same making stand for your task; name a task of your own with --task to know"
        )
    if not searched and any(one.measure.startswith("nDCG") for one in own):
        lines.append(
            "note: words and vectors together often find more, without any training: `cse index` and `cse search` on "
            "your documents"
        )
    lines += [f"note: {note}" for note in adapted.notes]
    if adapted.stopped:
        lines.append("note: stopped before the end; the same command goes on")
    lines += [adapted.indexed] if adapted.indexed else []
    bundle = adapted.folder / "bundle"
    after = (
        f"cse encode {bundle} texts.csv --classify --out labels.csv, or " if adapted.kind in (LABELS, FEW_ROWS) else ""
    )
    report = adapted.folder / "report"
    lines.append(f"{duration(adapted.seconds)}; model {bundle}, report {report}; next: {after}cse serve {bundle}")
    return "\n".join(lines)


def _bare(adapted: Adapted) -> Iterator[str]:
    """Yield a line that says what the bare backbone reaches by the main measure, where that was measured."""
    for task, measure in [adapted.main] if adapted.main is not None else []:
        for record in (system.first for system in adapted.systems if system.first.name == BARE):
            found = f"{record.scores['tasks'][task]['values'][measure]:.2f}"
            if measure == ACCURACY:
                right = read_items(record.folder / ITEMS_FILE)[f"tasks/{task}"][measure]  # times 100
                found = f"{share(round(right.sum() / 100), len(right))}: of {len(right):,} rows"
            yield f"  {task} {measure}: {found}"


def _words(adapted: Adapted) -> Iterator[str]:
    """Yield a line for each search task: nDCG@10 of words, of vectors and of both, before and after."""
    scores = {one.first.name.partition("-")[0]: one.first.scores.get("tasks", {}) for one in adapted.systems}
    for task, found in scores.get(BARE, {}).items():
        before, after = found["values"], scores.get(adapted.chosen.system, {}).get(task, found)["values"]
        if OF_WORDS in before:
            alone, both = (f"{before[name]:.2f} -> {after[name]:.2f}" for name in (NDCG, WITH_WORDS))
            yield f"{task} {NDCG}: words alone {before[OF_WORDS]:.2f}; vectors {alone}; words and vectors {both}"


def _shipped(adapted: Adapted) -> str:
    """Return what the bundle holds, and why."""
    chosen, searched = adapted.chosen, adapted.kind == DOCUMENTS
    if adapted.model == BARE:
        did = "found no more" if searched else "did worse"
        why = "" if chosen.system == BARE else f", since {chosen.rung.words} {did}"
        return f"in the bundle: the bare backbone{why}"
    score = "" if adapted.dev is None else f", dev {adapted.dev:.2f}"
    own = "; its weights are its own, so no bank can hold it" if chosen.rung.own_backbone else ""
    if searched:
        own = "; documents keep the bare backbone's vectors, so their index stays as it is"
    return f"in the bundle: {adapted.model} ({chosen.rung.words}{score}){own}"


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
        name = each.measure if each.task == one.task else f"{each.task} {each.measure}"
        name = "general similarity (STS)" if each.task == STS else name
        said += f"{joined}{name} {'' if number else 'fell '}by {-each.comparison.difference:.2f}"
    return said + (f"; holds for {ONE_TRAINING}." if one.comparison.one_training else ".")


# ---- the report -----------------------------------------------------------------------------------------------------


def write_page(adapted: Adapted, text: str) -> None:
    """Write the report: the summary, the texts that changed, and all measures."""
    report = make_report(adapted.systems, papers=False, verdict=text, further=change_tables(adapted))
    with publish_folder(adapted.folder / "report", Kind.REPORT) as folder:
        write_report(report, folder)


def change_tables(adapted: Adapted) -> list[Table]:
    """Return the texts of the main task that the model in the bundle helped most, and those it harmed most.

    Of labelled texts also which label is most often taken for which. The items of records are times 100.
    """
    if adapted.main is None or adapted.model == BARE:
        return []
    name, measure = adapted.main
    data = PreparedData(adapted.folder / "prepared")
    task = next((one for one in open_tasks(data, OWN) if one.name == name), None)
    folders = {record.name: record.folder for system in adapted.systems for record in system.records}
    items = [read_items(folders[one] / ITEMS_FILE).get(f"tasks/{name}", {}) for one in (BARE, adapted.model)]
    if isinstance(task, LabelledTexts) and all(f"{measure}{TOLD}" in one for one in items):
        labels = known_labels(task.test_label, task.reference_label)
        before, after = ([labels[int(number)] for number in one[f"{measure}{TOLD}"]] for one in items)
        taken = f"{name}: what {measure} takes each text for with"
        return [
            *_relabelled("helped", task, before, after, f"{taken} the bare backbone"),
            *_relabelled("harmed", task, after, before, f"{taken} the model in the bundle"),
            *_confusions(f"{name}: texts of a label that {measure} takes for another", task, before, after),
        ]
    own = task.queries if isinstance(task, Retrieval) else task.test if isinstance(task, LabelledTexts) else []
    values = [one.get(measure, np.empty(0)) for one in items]
    if not len(values[0]) == len(values[1]) == len(own) > 0:
        return []
    tables, gain = [], values[1] - values[0]
    for kind, gained in (("helped", gain), ("harmed", -gain)):
        changed = [n for n in np.argsort(-gained, kind="stable") if gained[n] > 0]
        lines = [(own[n], *(f"{of[n]:.0f}" for of in values)) for n in changed[:MOST]]
        caption = (
            f"{name}: {measure} times 100 of each text with the bare backbone and with the model in the bundle; the "
            f"{len(lines)} that changed most."
        )
        title = f"Texts that it {kind}: {len(changed):,} of {len(own):,}"
        tables.append(Table(kind, title, caption, ("text", "before", "after"), lines, 1))
    return [table for table in tables if table.lines]


def _relabelled(
    kind: str, task: LabelledTexts, wrong: Sequence[str], right: Sequence[str], what: str
) -> Iterator[Table]:
    """Yield the texts that one model labels wrong and the other right; the most frequent confusions first."""
    label = task.test_label
    changed = [n for n, own in enumerate(label) if wrong[n] != own == right[n]]
    frequent = Counter((label[n], wrong[n]) for n in changed)
    shown = sorted(changed, key=lambda n: (-frequent[label[n], wrong[n]], label[n], wrong[n]))[:MOST]
    caption = f"{what}; with the other it is right. Of the most frequent confusions, {len(shown)} texts."
    if shown:
        title = f"Texts that it {kind}: {len(changed):,} of {len(label):,}"
        lines = [(task.test[n], label[n], wrong[n]) for n in shown]
        yield Table(kind, title, caption, ("text", "label", "taken for"), lines, 3)


def _confusions(what: str, task: LabelledTexts, before: Sequence[str], after: Sequence[str]) -> Iterator[Table]:
    """Yield which label is taken for which, the most frequent first."""
    label = task.test_label
    old, new = (
        Counter(pair for pair in zip(label, told, strict=True) if pair[0] != pair[1]) for told in (before, after)
    )
    common = sorted(old.keys() | new.keys(), key=lambda pair: (-new[pair], -old[pair], pair))
    lines = [(*pair, *(f"{of[pair]:,}" for of in (old, new))) for pair in common[:MOST]]
    if lines:
        caption = (
            f"{what}, with the bare backbone ({old.total():,} of {len(label):,}) and with the model in the bundle "
            f"({new.total():,}); the {len(lines)} most frequent of {len(common):,} confusions."
        )
        head = ("label", "taken for", "before", "after")
        yield Table("confusions", "Labels taken for others", caption, head, lines, 2)
