"""Which systems are better than a baseline, with intervals, from the items in their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cse.errors import CseError, nearest
from cse.evaluation.comparison import ONE_TRAINING, Compared, Measured, compare_measured, compared_rows
from cse.evaluation.record import ITEMS_FILE, read_items
from cse.report.systems import System
from cse.report.tables import Table

Against = tuple[System, System, list[Compared]]  # baseline, system and comparisons


def comparisons(systems: Sequence[System], baseline: str | None = None) -> list[Against]:
    """Compare every system that is more than a bare backbone with a baseline, where both have tasks in common.

    ``baseline`` is the name of a system; None: each system's bare backbone, where that was evaluated too, else the
    first system.
    """
    names = [system.name for system in systems]
    if baseline is not None and baseline not in names:
        raise CseError(f"--baseline: no system {baseline!r}; one of {', '.join(names)}{nearest(baseline, names)}")
    found = []
    for system in systems:
        other = _baseline_of(system, systems, baseline)
        if other is not None:
            results = compare_measured(measured(other), measured(system))
            if results:
                found.append((other, system, results))
    return found


def measured(system: System) -> Measured:
    """Return what a system scored, seed by seed."""
    scored = system.first.scores.get("tasks", {})
    return Measured(
        [read_items(record.folder / ITEMS_FILE) for record in system.records],
        {task: list(found["values"]) for task, found in scored.items()},
        system.trained,
        [record.content for record in system.records],
    )


def comparison_table(found: Sequence[Against]) -> Table:
    """Return comparisons as one table."""
    lines = [(after.name, before.name, *row) for before, after, results in found for row in compared_rows(results)[1:]]
    head = ("system", "against", *compared_rows([])[0])
    caption = (
        "95 % intervals from a paired bootstrap over queries, pairs or texts and Student's t over training seeds. "
        "Better or worse: the interval of the difference excludes 0. One seed says nothing of the next, and of twenty "
        "rows without a true difference one seems to have one."
    )
    return Table("comparisons", "Is it better?", caption, head, lines, 5)


def in_words(found: Sequence[Against]) -> str:
    """Return a line for each system: on how many measures it is better or worse."""
    lines = []
    for before, after, results in found:
        counts = Counter(one.comparison.verdict for one in results)
        told = [f"{verdict} on {counts[verdict]}" for verdict in sorted(counts, key=lambda one: (len(one), one))]
        once = f"; {ONE_TRAINING}" if any(one.comparison.one_training for one in results) else ""
        lines.append(f"{after.name} against {before.name}: {', '.join(told)} measures{once}")
    return "\n".join(lines)


def _baseline_of(system: System, systems: Sequence[System], baseline: str | None) -> System | None:
    if baseline is not None:
        return None if system.name == baseline else next(one for one in systems if one.name == baseline)
    if system.bare:
        return None
    bare = [one for one in systems if one.bare and one.backbone == system.backbone]
    if bare:  # behind other task texts it is no baseline: the gain would be theirs
        alike = [one for one in bare if one.reads.get("texts") == system.reads.get("texts")]
        return next((one for one in alike if one.reads == system.reads), alike[0] if alike else None)
    return systems[0] if system is not systems[0] else None
