"""Several bare backbones on the same held-out rows or judged queries, before anything is trained: which to adapt.

A sample comes first. Whatever is worse on it than the best one, by the interval of their paired difference, is out;
where several are left, these are measured on more. Then the rule is ``RULE``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from cse.adapt.models import say
from cse.data.tasks.kinds import PROXY, LabelledTexts, Task, all_texts, kind_of
from cse.data.tasks.parts import sample_of, spread
from cse.errors import CseError
from cse.evaluation.classifier import names_of, rows_of, told_right
from cse.evaluation.comparison import Comparison, Outcomes, compare
from cse.evaluation.measures import TextEncoder
from cse.evaluation.score import ACCURACY, CLASS_PROBABILITY, COSINE, GOLD, MEASURES, score_task
from cse.evaluation.table import format_rows
from cse.ledger import Ledger
from cse.model.backbone_files import find_backbone
from cse.model.device import choose_device
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.settings.model import BackboneSettings
from cse.stages.open_model import bare_of
from cse.training.fit_post import FIT_BATCH

SAMPLE, MOST = 1_000, 10_000  # texts, reference rows and documents included
RULE = "the fastest whose {} is not below the best one's by more than the 95 % interval of their paired difference"
NOTHING_HELD_OUT = (
    "--backbone: several are compared on held-out rows or judged queries, and here are none; name one, or give "
    "labelled texts (--labels) or judged queries (--dev-queries)"
)
_TIMED, _WARM_UP = 128, 8  # texts


@dataclass(frozen=True)
class Shown:
    """What a bare backbone showed.

    Attributes:
        megabytes: its weights in float32.
        speed: texts per second, as torch encodes them here.
        values: of each item, or the cosine of each pair.
        gold: of each pair; None: the measure is the mean of ``values``.
    """

    name: str
    megabytes: float
    speed: float
    values: list[float]
    gold: list[float] | None = None

    def outcomes(self, measure: str) -> Outcomes:
        """Return what two backbones are compared by."""
        gold = None if self.gold is None else np.array(self.gold)
        return Outcomes(np.array([self.values]), gold, "" if gold is None else measure, trained=False)


def choose_backbone(
    settings: Settings, rivals: Sequence[BackboneSettings], task: Task | None, measure: str | None, ledger: Ledger
) -> tuple[Settings, list[str]]:
    """Return the settings with the backbone that wins for its cost, and what to say of it; one alone is not measured.

    Args:
        task: what is held out to choose; labelled texts without test rows are told by each other.
        measure: that chooses; None: the task's main one.
    """
    if not rivals:
        return settings, []
    if task is None:
        raise CseError(NOTHING_HELD_OUT)
    measure = (measure or MEASURES[kind_of(task)][0]).removesuffix(PROXY)
    measure = ACCURACY if measure == CLASS_PROBABILITY else measure
    every, whole = [settings.backbone, *rivals], _count(task)
    left = [*range(len(every))]
    for texts in (SAMPLE, MOST):
        part, found = sample_of(task, texts), list[Shown]()
        for number in left:
            work = partial(_measure, every[number], part, measure, settings.evaluation.device)
            found.append(Shown(**ledger.run(f"backbone {number + 1} on {texts} texts", work).result))
        scored = [one.outcomes(measure) for one in found]
        best = max(scored, key=lambda one: one.scores(np.ones((1, one.items))).item())
        against = [compare(best, one) for one in scored]
        say(_table(found, against, measure, f"{_count(part):,} of {whole:,} texts"))
        speed = {
            number: one.speed for number, one, each in zip(left, found, against, strict=True) if each.verdict != "worse"
        }
        left = [*speed]
        if len(left) == 1 or _count(part) == whole:
            break
    chosen = every[max(speed, key=speed.__getitem__)]
    told = f"of {1 + len(rivals)} backbones {chosen.name} goes on: {RULE.format(measure)}"
    say(told)
    return settings_with(settings, {f"backbone.{key}": value for key, value in chosen.model_dump().items()}), [told]


def files_of_backbones(rivals: Sequence[BackboneSettings]) -> dict[str, Any]:
    """Return what a comparison with rivals depends on, as a ledger keeps it; refuse those that are not there."""
    files = [find_backbone(one.name, one.revision) for one in rivals]
    content = {"the backbones' files": [each.content() for each in files]} if rivals else {}
    return content | ({"--backbone": [one.name for one in rivals]} if rivals else {})


def _count(task: Task) -> int:
    return sum(1 for _ in all_texts(task))


def _measure(backbone: BackboneSettings, task: Task, measure: str, device: str) -> dict[str, Any]:
    say(f"measuring {backbone.name}, bare")
    encoder = bare_of(backbone).to(choose_device(device))
    texts = spread(sorted({*all_texts(task)}), _TIMED)
    encoder.encode(texts[:_WARM_UP])
    begun = time.perf_counter()
    encoder.encode(texts)
    speed = len(texts) / (time.perf_counter() - begun)
    megabytes = 4 * sum(weight.numel() for weight in encoder.parameters()) / 1e6
    values, gold = _items(encoder, task, measure)
    return asdict(Shown(backbone.name, megabytes, speed, values.tolist(), None if gold is None else gold.tolist()))


def _items(encoder: TextEncoder, task: Task, measure: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the values of ``Shown``."""
    if isinstance(task, LabelledTexts) and not task.test:
        names = rows_of(encoder, *names_of(task.reference_label, task.names))
        return told_right(rows_of(encoder, task.reference, task.reference_label), names).astype(float), None
    items = score_task(encoder, task, batch_size=FIT_BATCH, measures=(measure,)).items
    return (items[measure] / 100, None) if measure in items else (items[COSINE], items[GOLD])


def _table(found: Sequence[Shown], against: Sequence[Comparison], measure: str, on: str) -> str:
    rows = [["bare backbone", measure, "against the best", "MB", "texts/s"]]
    for one, each in zip(found, against, strict=True):
        gap = f"{each.difference:+.2f} ({each.low:+.2f} to {each.high:+.2f})" if each.low < each.high else "best"
        rows.append([one.name, f"{each.after:.2f}", gap, f"{one.megabytes:.0f}", f"{one.speed:.0f}"])
    return f"{against[0].items:,} items, {on}:\n{format_rows(rows, 'text')}".rstrip()
