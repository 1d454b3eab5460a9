"""Promotion gate: compare a model with torch and, on the same dev pairs, with the one that it would replace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cse.choices import Precision
from cse.data.store import PreparedData
from cse.data.tasks.kinds import PROXY, kind_of
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_label, measure_in
from cse.evaluation.score import MEASURES, dev_measure, score_dev
from cse.export.parity import check_parity
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings import Settings
from cse.stages.export import sentences_for_parity

BATCH = 64  # sentences


@dataclass(frozen=True)
class Verdict:
    """Result of the gate.

    Attributes:
        dev: dev score of the candidate's bundle, times 100; None without dev pairs or dev task.
        difference: largest difference between the candidate's bundle and torch; None if above the tolerance.
    """

    reasons: tuple[str, ...]
    dev: float | None
    promoted_dev: float | None
    difference: float | None

    @property
    def passed(self) -> bool:
        """Whether there is no reason to refuse the model."""
        return not self.reasons


def judge(settings: Settings, *, bundle: Path, checkpoint: Path, prepared: Path, promoted: Path | None) -> Verdict:
    """Compare a bundle with its checkpoint and with the promoted bundle, see ``judge_encoders``."""
    return judge_encoders(
        settings,
        onnx=OnnxEncoder(bundle),
        encoder=load_checkpoint(checkpoint),
        data=PreparedData(prepared),
        promoted=None if promoted is None else OnnxEncoder(promoted),
        measure=measure_in(read_config(checkpoint)["facts"]),
    )


def judge_encoders(
    settings: Settings,
    *,
    onnx: OnnxEncoder,
    encoder: SentenceEncoder,
    data: PreparedData,
    promoted: OnnxEncoder | None,
    named: str = "the promoted model",
    measure: str | None = None,
) -> Verdict:
    """Compare a candidate with torch and, on its own dev pairs, with the model that it would replace.

    The promoted model is scored again because dev pairs change, and scores on different pairs are not comparable.

    Args:
        measure: of the dev score; None, or one that the dev task does not have: the task's main measure.
    """
    reasons, difference = [], None
    try:
        sentences = sentences_for_parity(data)
        precision, tolerance = cast("Precision", onnx.manifest.precision), settings.export.tolerance
        found = check_parity(encoder, onnx, sentences, tolerance=tolerance, precision=precision)
        difference = float(found["largest_difference"])
    except CseError as error:
        reasons.append(f"no parity with torch: {error}")
    dev = before = None
    task, label = open_dev(data), ""
    if task is not None:
        known = (measure or "").removesuffix(PROXY) in MEASURES[kind_of(task)]
        measure = dev_measure(task, measure if known else None, "train.dev_measure")
        label = dev_label(measure)
        dev = round(score_dev(onnx, task, BATCH, measure).value, 4)
    if promoted is not None:
        if task is None or dev is None:
            reasons.append(f"no dev pairs for comparison with {named}; set data.dev_path")
        else:
            before = round(score_dev(promoted, task, BATCH, measure).value, 4)
            tolerance = settings.promotion.dev_tolerance
            if not dev >= before - tolerance:
                reasons.append(
                    f"{label} {dev:.2f} is more than {tolerance:g} below {named}'s {before:.2f} on the same pairs "
                    "(promotion.dev_tolerance)"
                )
    return Verdict(tuple(reasons), dev, before, difference)
