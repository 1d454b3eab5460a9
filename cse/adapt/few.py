"""Labelled texts too few to train on, or names of labels alone: the bare backbone with a classifier, in seconds.

Nothing is held out of so few. Each text is told by a classifier of the others, and an interval says how much that says.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cse.adapt.backbones import choose_backbone
from cse.adapt.look import TO_TRAIN, TO_TRAIN_AND_MEASURE, Found
from cse.adapt.models import say
from cse.data.clean import text_key
from cse.data.prepare import own_tasks
from cse.data.tasks.kinds import LabelledTexts, of_kind
from cse.errors import CseError
from cse.evaluation.classifier import FOLDS, fit_classifier, names_of, rows_of
from cse.evaluation.score import ACCURACY
from cse.ledger import Ledger
from cse.runtime.classifier import Classifier
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.settings.model import BackboneSettings
from cse.stages.export import export_stage, names_in


def classify_few(
    settings: Settings,
    found: Found,
    labelled: LabelledTexts,
    out: Path,
    label_names: Path | None,
    rivals: Sequence[BackboneSettings],
    ledger: Ledger,
) -> str:
    """Make the bundle, and return on one screen what is known of it; for ``rivals`` see ``choose_backbone``."""
    begun, data, bundle = time.monotonic(), settings.data, out / "bundle"
    if data.more:
        raise CseError(f"{data.more[0].path}: {found.told}; nothing is trained on so few, so leave SOURCE out")
    say(f"{found.told}: nothing is trained on so few, the bare backbone gets a classifier")
    labels = sorted({*labelled.reference_label, *(label for _, label in labelled.names)})
    own = names_in(label_names, labels)
    others = [one for one in labelled.names if one[1] not in {label for _, label in own}]
    names = [*zip(*names_of(labels, [*own, *others]), strict=True)]  # of labels too whose texts are all measured
    measured = of_kind(own_tasks(data) if labelled.reference else [], LabelledTexts)
    seen = {text_key(text) for task in measured for text in task.test}
    rows = [*zip(labelled.reference, labelled.reference_label, strict=True)]
    texts, known = ([row[side] for row in rows if text_key(row[0]) not in seen] for side in (0, 1))
    if left := len(rows) - len(texts):
        say(f"left out: {left:,} of {len(rows):,} texts, since they are test texts")
    labelled = replace(labelled, reference=texts, reference_label=known, names=names)
    settings, chose = choose_backbone(settings, rivals, labelled, ACCURACY, ledger)
    plain = settings_with(settings, {"export.precision": "fp32"})  # so few texts judge no other
    export_stage(plain, model=settings.backbone, prepared=None, metrics=(), bundle=bundle, labelled=labelled)
    encoder = OnnxEncoder(bundle)
    assert encoder.classifier is not None  # noqa: S101 - it was made above
    lines = [*_known(encoder, encoder.classifier, labelled, measured), *chose]
    lines.append(f"in the bundle: the bare backbone, and a classifier of {len(labels):,} labels")
    lines.append(
        f"{time.monotonic() - begun:.0f} s; model {bundle}; next: cse encode {bundle} texts.csv --classify --out "
        f"labels.csv, or cse serve {bundle}"
    )
    return "\n".join(lines)


def _known(
    encoder: OnnxEncoder, classifier: Classifier, rows: LabelledTexts, measured: list[LabelledTexts]
) -> Iterator[str]:
    """Yield what is known of a classifier, the first line first."""
    facts, counts = classifier.facts, Counter(rows.reference_label)
    for task in measured:
        right = [told.label == own for told, own in zip(encoder.classify(task.test), task.test_label, strict=True)]
        yield f"{task.name} accuracy {share(sum(right), len(right))}: of {len(right):,} test texts"
    if not counts:
        if not measured:
            yield (
                "No text has a label, so nothing is known of how often names alone are right: 100 labelled texts would "
                "tell it to 10 points."
            )
        yield "Probabilities are not calibrated, and no text is told as unknown."
        yield "to know more, and to gain more: one to three texts of each label, with --labels"
        return
    alone = sum(each == 1 for each in counts.values())
    if not facts.rows:
        yield "Nothing is known of its accuracy: no label has two texts, so none can be left out; names say nothing."
    else:
        yield (
            f"accuracy {share(round(facts.accuracy * facts.rows), facts.rows)}: of {facts.rows:,} texts, each told by "
            "a classifier of the others"
        )
        known = rows_of(encoder, rows.reference, rows.reference_label)
        names = rows_of(encoder, *names_of(rows.reference_label, rows.names))
        without = fit_classifier(known, replace(names, vector=names.vector[:0], label=[])).facts.accuracy
        by_name = np.mean(np.array(names.label)[(known.vector @ names.vector.T).argmax(axis=1)] == known.label)
        yield (
            f"  without the names of labels {100 * without:.1f} %, by names alone {100 * by_name:.1f} %"
            f"{'' if facts.names else ': names are left out, since they tell texts no better than chance'}"
        )
        left = f", {alone:,} labels none" if alone else ""
        more = ": expect more than this" if facts.accuracy < 1 else ""
        fewer = "one text" if max(counts.values()) <= FOLDS else "a fifth of its texts, or one,"
        yield f"  each time its label has {fewer} fewer than in the bundle{left}{more}"
    more = f"from {TO_TRAIN if measured else TO_TRAIN_AND_MEASURE} of a label on, models are trained"
    yield f"to know more: {4 * counts.total():,} texts halve the interval; {more}"


def share(right: int, count: int) -> str:
    """Return a share in per cent with its 95 % interval (Wilson 1927)."""
    from scipy.stats import binomtest

    low, high = binomtest(right, count).proportion_ci(method="wilson")
    return f"{100 * right / count:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f}"
