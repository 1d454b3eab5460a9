"""Stage ``export``: turn a checkpoint into a bundle that a service loads without torch."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from cse.data.shape import read_rows
from cse.data.store import PreparedData, texts_in
from cse.data.tasks.kinds import HELD_OUT, LabelledTexts, ScoredPairs, Task, all_texts, of_kind
from cse.data.tasks.store import DEV, OWN, TEST, open_tasks
from cse.errors import CseError, nearest
from cse.evaluation.classifier import Named, Rows, fit_classifier, names_of, rows_of
from cse.evaluation.measures import TextEncoder
from cse.evaluation.score import score_dev
from cse.evaluation.sts import evaluate_sts
from cse.export.bank import SENTENCES
from cse.export.bundle import write_bundle
from cse.export.mix import mixed_texts
from cse.export.parity import check_parity, check_rounded
from cse.export.precision import CALIBRATED
from cse.model.checkpoint import identity_of
from cse.model.sentence_encoder import SentenceEncoder, load_bare, load_bare_backbone, load_checkpoint
from cse.outputs import Kind, check_folder
from cse.runtime.bundle import verify
from cse.runtime.classifier import Classifier, ClassifierFacts, read_classifier
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.uses import QUERY
from cse.settings import Settings
from cse.settings.model import BackboneSettings
from cse.stages.common import BUNDLE, CHECKPOINT, METRICS, PREPARED, run_stage

SCORES = METRICS / "train.json", METRICS / "evaluation.json"  # of the pipeline's own checkpoint
_COMPARED = 256  # sentences of the parity check
_TRAINING = 2000  # training texts that those for ranges are taken from
_ITEMS = 2  # of a small task of one's own that rounding may turn over


def open_with_torch(model: str | Path | BackboneSettings) -> SentenceEncoder:
    """Open a checkpoint or a backbone; the pipeline's own checkpoint is never looked up on the hub."""
    if isinstance(model, BackboneSettings):
        return load_bare(model.name, model.revision, model.max_length, model.texts)
    return load_checkpoint(CHECKPOINT) if Path(model) == CHECKPOINT else SentenceEncoder.load(model)


def export_stage(
    settings: Settings,
    *,
    model: str | Path | BackboneSettings = CHECKPOINT,
    prepared: Path | None = PREPARED,
    metrics: tuple[Path, ...] = SCORES,
    bundle: Path = BUNDLE,
    label_names: Path | None = None,
    labelled: LabelledTexts | None = None,
    like: ClassifierFacts | None = None,
) -> None:
    """Export a checkpoint (or a bare backbone), compare it with torch on real sentences and publish the bundle.

    Args:
        prepared: where the sentences are; None: a few of our own, which say too little of a rounded graph.
        label_names: table of texts that describe labels, with their labels; None: the labels themselves, in words.
        labelled: the rows of its classifier, see ``classifier_of``; None: those of the prepared data.
        like: what an earlier model's classifier showed on rows that this model was trained on.
    """
    check_folder(bundle, Kind.BUNDLE)
    encoder, options = open_with_torch(model), settings.export
    data = None if prepared is None else PreparedData(prepared)
    checkpoint = "" if isinstance(model, BackboneSettings) else identity_of(Path(model))
    if prepared is None and options.precision != "fp32":
        raise CseError(f"export.precision: {options.precision} is judged by prepared data; run `cse prepare`")
    sentences = SENTENCES if data is None else sentences_for_parity(data)
    scores = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in metrics if path.is_file()}
    calibration: list[str] = []
    if data is not None and options.precision == "int8":
        own = sentences_for_ranges(data, judged=sentences)
        calibration = own + mixed_texts(judged=False)
        click.echo(
            f"reading the ranges of activations from {len(own)} texts of yours that are not compared below, and "
            f"{len(calibration) - len(own)} unlike them",
            err=True,
        )
    with write_bundle(
        encoder,
        bundle,
        normalize=True,
        metrics=scores,
        checkpoint=checkpoint,
        precision=options.precision,
        texts=calibration,
    ) as draft:
        click.echo(f"comparing ONNX with torch on {len(sentences)} sentences", err=True)
        onnx = OnnxEncoder(draft.folder)
        draft.parity = check_parity(encoder, onnx, sentences, tolerance=options.tolerance, precision=options.precision)
        if options.precision == "int8":
            draft.parity |= check_mixed(encoder, onnx)
        if data is not None and options.precision != "fp32":
            scored = [*(_similarity_tasks(data) or open_tasks(data, OWN)[:1])]  # what tells of a loss by rounding
            draft.parity |= check_score(encoder, onnx, scored, options.score_loss)
        if labelled is None and data is not None:
            labelled = labelled_of(data, label_names)
        if labelled is not None:
            bare = partial(load_bare_backbone, Path(str(model))) if checkpoint else None
            classifier = classifier_of(onnx, labelled, like, bare)
            classifier.write(draft.folder)
            click.echo(f"classifier of {classifier.facts}")
    click.echo(
        f"{bundle}: {encoder.dimension} dimensions, largest difference from torch "
        f"{draft.parity['largest_difference']:.1e} on {len(sentences)} sentences; {onnx.provider_note}"
    )


def check_mixed(encoder: SentenceEncoder, onnx: OnnxEncoder) -> dict[str, float]:
    """Judge an int8 bundle on numbers, codes, other scripts and the like that it was not calibrated on, and say how.

    With a query side, the worse of both roles counts.

    Returns:
        ``mixed_mean_cosine``, ``mixed_neighbours``.
    """
    texts, facts = mixed_texts(judged=True), dict[str, float]()
    quiet = logging.root.manager.disable  # long texts of the mix are cut on purpose
    logging.disable(max(quiet, logging.WARNING))
    try:
        for role in (None, QUERY) if encoder.side == QUERY else (None,):
            expected, found = (model.encode(texts, normalize=True, role=role) for model in (encoder, onnx))
            seen = check_rounded(expected, found, found[:0], of="numbers, codes, other scripts and single words")
            facts = {key: min(value, facts.get(key, value)) for key, value in seen.items()}
    finally:
        logging.disable(quiet)
    click.echo(f"numbers, codes, other scripts, single words: mean cosine with torch {facts['mean_cosine']:.3f}")
    return {f"mixed_{key}": value for key, value in facts.items()}


def check_score(encoder: SentenceEncoder, onnx: OnnxEncoder, tasks: Sequence[Task], most: float) -> dict[str, float]:
    """Return what a rounded bundle loses to torch, and print it.

    Returns:
        ``score_loss``: points of Spearman * 100, on average over scored pairs, or of one's own task; nothing if there
        is no task.
    """
    if not tasks:
        click.echo("nothing to score in the evaluation data: rounding is judged by the vectors alone", err=True)
        return {}
    texts, bar = len({text for task in tasks for text in all_texts(task)}), sys.stderr.isatty()
    click.echo(f"scoring torch and the bundle on {texts:,} texts of the evaluation", err=True)
    if pairs := of_kind(tasks, ScoredPairs):
        name = "STS"
        scores = [evaluate_sts(model, pairs, progress=bar).average() for model in (encoder, onnx)]
    else:
        found = [score_dev(model, tasks[0], progress=bar) for model in (encoder, onnx)]
        name, scores = f"{tasks[0].name} {found[0].measure}", [score.value for score in found]
        most = max(most, 100 * _ITEMS / len(tasks[0]))
    loss = round(scores[0] - scores[1], 2)
    click.echo(f"{name}: torch {scores[0]:.2f}, bundle {scores[1]:.2f}, loss {loss:.2f}")
    if loss > most:
        raise CseError(
            f"export.precision: the bundle loses {loss:.2f} points of {name}, more than export.score_loss allows, "
            f"{round(most, 2):g}; export in fp32; nothing was published"
        )
    return {"score_loss": loss}


def labelled_of(data: PreparedData, label_names: Path | None = None) -> LabelledTexts | None:
    """Return the labelled texts that make a classifier, if there are any; held-out rows are its test rows.

    Rows that measure the user's task calibrate nothing. Those that were held out of the user's rows are learnt in the
    end; test rows that the user gave never are.

    Args:
        label_names: see ``export_stage``.
    """
    held, own = (of_kind(open_tasks(data, role), LabelledTexts)[:1] for role in (DEV, OWN))
    ours = [one for one in own if one.split == HELD_OUT]
    measured = [row for one in ours for row in zip(one.test, one.test_label, strict=True)]
    for task in held or [replace(one, test=[], test_label=[]) for one in own]:
        return replace(task, names=names_in(label_names, task.reference_label), measured=measured)
    return None


def classifier_of(
    encoder: TextEncoder,
    task: LabelledTexts,
    like: ClassifierFacts | None = None,
    bare: Callable[[], TextEncoder] | None = None,
) -> Classifier:
    """Return the classifier of labelled texts in the vectors of an encoder; test rows calibrate it, or ``like`` does.

    Args:
        like: see ``fit_classifier``.
        bare: loads the backbone of a trained model. It may know all rows, and then tells them as if it were never
            wrong; so where none were held out, the backbone's classifier says how sure to be.
    """
    if like is None and bare is not None and not task.test:
        click.echo("no labelled rows were held out: the bare backbone's classifier says how sure this one is", err=True)
        like = classifier_of(bare(), task).facts
    names = rows_of(encoder, *names_of(task.reference_label, task.names))
    known = rows_of(encoder, task.reference, task.reference_label) if task.reference else Rows(names.vector[:0], [])
    held = rows_of(encoder, task.test, task.test_label) if task.test else None
    measured = rows_of(encoder, *zip(*task.measured, strict=True)) if task.measured else None
    return fit_classifier(known, names, held, measured, like=like)


def classifier_for(
    encoder: SentenceEncoder, model: Path, data: PreparedData | None, label_names: Path | None, bundle: Path | None
) -> Classifier | None:
    """Return the classifier of a model that leaves: that of its bundle, or of prepared labelled texts.

    Args:
        model: its checkpoint, or its backbone.
        label_names: see ``export_stage``.
    """
    if bundle is not None:
        return classifier_in(bundle, identity_of(model), encoder.backbone.files.sha256)
    labelled = None if data is None or encoder.side == QUERY else labelled_of(data, label_names)
    bare = partial(load_bare_backbone, model) if identity_of(model) else None
    return None if labelled is None else classifier_of(encoder, labelled, bare=bare)


def classifier_in(bundle: Path, checkpoint: str, backbone: str) -> Classifier:
    """Return the classifier of a bundle of the same model: a checkpoint by its identity, or a bare backbone's hash."""
    manifest = verify(bundle)
    found = read_classifier(bundle, manifest.shape.dimension)
    if found is None:
        raise CseError(f"--classifier: {bundle}: no classifier; make one with `cse adapt --labels`")
    if (manifest.domain.checkpoint, manifest.backbone.get("sha256")) != (checkpoint, backbone):
        raise CseError(f"--classifier: {bundle}: of another model than this one; name the bundle that was made of it")
    return found


def names_in(file: Path | None, labels: Sequence[str]) -> Named:
    """Return the texts in a file that describe labels, and these; refuse labels that are none of the given ones."""
    found = [] if file is None else [(str(row.texts[0]), str(row.label)) for row in read_rows(file, "categories")]
    for text, label in found:
        if label not in labels:
            raise CseError(f"{file}: label {label[:40]!r} ({text[:40]!r}) is none of the texts{nearest(label, labels)}")
    return found


def training_sentences(data: PreparedData, count: int) -> list[str]:
    """Return up to ``count`` distinct training sentences, spread over the whole set."""
    texts = dict.fromkeys(texts_in(data.train, data.train.column_names[0]))
    step = max(len(texts) // count, 1)
    return list(texts)[::step][:count]


def sentences_for_ranges(data: PreparedData, judged: Sequence[str]) -> list[str]:
    """Return some hundreds of training sentences, or of the own tasks' texts, without those that judge a bundle."""
    left = set(judged)
    found = [text for text in training_sentences(data, _TRAINING) or _own_texts(data) if text not in left]
    return found[:: max(-(-len(found) // CALIBRATED), 1)]


def sentences_for_parity(data: PreparedData) -> list[str]:
    """Return evaluation sentences; without any, of half the training sentences or own tasks' texts."""
    found = list(dict.fromkeys(text for task in _similarity_tasks(data) for text in all_texts(task)))
    if not found:
        found = training_sentences(data, _TRAINING) or _own_texts(data)
        found = found[1::2] or found  # the others are there for the ranges of int8
    if not found:
        raise CseError(f"{data.folder}: no sentences to compare ONNX with torch on; run `cse prepare`")
    step = max(len(found) // _COMPARED, 1)  # spread over all tasks, not only the first
    return found[::step][:_COMPARED]


def _own_texts(data: PreparedData) -> list[str]:
    return list(dict.fromkeys(text for task in open_tasks(data, OWN) for text in all_texts(task)))


def _similarity_tasks(data: PreparedData) -> list[ScoredPairs]:
    return of_kind(open_tasks(data, TEST), ScoredPairs)


if __name__ == "__main__":
    run_stage(export_stage)
