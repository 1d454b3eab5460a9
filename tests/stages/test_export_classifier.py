"""Stage ``export`` leaves a classifier of labelled texts with a bundle, of the vectors of that bundle."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from cse.data.store import PreparedData
from cse.data.tasks.kinds import GIVEN, HELD_OUT
from cse.data.tasks.store import TEST, open_tasks, write_tasks
from cse.errors import CseError
from cse.evaluation.classifier import Rows, fit_classifier, names_of
from cse.evaluation.score import score_task
from cse.evaluation.suite import SuiteResults
from cse.evaluation.table import format_suite
from cse.export.mix import mixed_texts
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import verify
from cse.runtime.classifier import CLASSIFIER
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.stages.bank import add, create
from cse.stages.export import (
    classifier_in,
    classifier_of,
    export_stage,
    names_in,
    sentences_for_parity,
    sentences_for_ranges,
)
from tests.pages.blocks import run_by
from tests.parts import refusal
from tests.rows import write_lines
from tests.stages.test_dev_task import labelled

(BLOCK,) = run_by("docs/adapt.md", __file__)


@pytest.fixture
def prepared(data, tmp_path):
    """Prepared rows whose own task is labelled texts."""
    folder = shutil.copytree(data["sentences"], tmp_path / "prepared")
    write_tasks(folder, dev=None, test=open_tasks(PreparedData(folder), TEST), own=[labelled()])
    return folder


@pytest.fixture
def exported(models, prepared, settings, tmp_path):
    """Make their bundle."""

    def export(precision="fp32"):
        folder = tmp_path / "data/adapt/bundle"
        made = settings({"export.precision": precision, "export.score_loss": 100.0})
        export_stage(made, model=models["bert"], prepared=prepared, metrics=(), bundle=folder)
        return folder

    return export


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_classifier_is_of_the_vectors_of_the_bundle_in_its_precision(exported, models, precision):
    encoder, task = OnnxEncoder(exported(precision), provider="cpu"), labelled()
    labels = encoder.classifier.facts.labels
    assert labels == ["four", "one", "three", "two"]
    vectors, names = (encoder.encode(texts, normalize=True) for texts in (task.reference, labels))
    expected = fit_classifier(Rows(vectors, task.reference_label), Rows(names, labels))
    np.testing.assert_allclose(encoder.classifier.weight, expected.weight, rtol=1e-4, atol=1e-5)
    test = encoder.encode(task.test, normalize=True)
    told = [told.label for told in encoder.classify(task.test)]
    assert told == [told.label for told in expected.classify(test)]
    bundle, bare = score_task(encoder, task), score_task(SentenceEncoder.load(models["bert"]), task)
    right = sum(one == other for one, other in zip(told, task.test_label, strict=True))
    assert bundle.values["accuracy as shipped"] == pytest.approx(100 * right / len(told))
    printed = format_suite({"bare": SuiteResults(tasks={"own": bare}), "bundle": SuiteResults(tasks={"own": bundle})})
    *_, head, without, with_it = printed.splitlines()
    assert head.endswith("accuracy as shipped") and without.split()[-1] == "-" and with_it.split()[-1] != "-"


def test_it_is_sealed_with_the_bundle_and_the_page_asks_it(exported, tmp_path, monkeypatch, capsys):
    folder = exported()
    verify(folder)
    monkeypatch.chdir(tmp_path)
    text = labelled().test[0]
    capsys.readouterr()
    exec(BLOCK.text.replace("I have lost my card", text), {})
    facts, first, second = capsys.readouterr().out.splitlines()
    assert facts.startswith("4 labels") and first.startswith(f"{text} ") and second.startswith("how many dollars ")
    data = (folder / CLASSIFIER).read_bytes()
    (folder / CLASSIFIER).write_bytes(data.replace(b"four", b"five"))
    with pytest.raises(CseError, match=r"classifier\.safetensors"):
        verify(folder)


def test_names_of_labels_come_from_a_file_or_are_the_labels_in_words(tmp_path):
    file = write_lines(tmp_path / "names.csv", ["text,label", "the number one,one", "a first,one"])
    labels = ["one", "TopUp"]
    found = names_of(labels, names_in(file, labels))
    assert found == (["the number one", "a first", "top up"], ["one", "one", "TopUp"])
    assert "names.csv: label 'one' ('the number one') is none of the texts" in refusal(names_in, file, ["two"])


def test_held_out_rows_calibrate_it_and_test_rows_do_not(models, prepared, settings, tmp_path):
    task = labelled()
    held = replace(task, name="held out", test=task.reference[:5], test_label=task.reference_label[:5])
    held = replace(held, reference=task.reference[5:], reference_label=task.reference_label[5:])
    for own, rows in (([task], 5), ([], None)):  # without labels it has no classifier
        write_tasks(prepared, dev=held if own else None, test=open_tasks(PreparedData(prepared), TEST), own=own)
        export_stage(settings(), model=models["bert"], prepared=prepared, metrics=(), bundle=tmp_path / "bundle")
        classifier = OnnxEncoder(tmp_path / "bundle").classifier
        assert (classifier and classifier.facts.rows) == rows


def test_rows_that_measured_are_learnt_where_the_user_gave_no_test_rows(models, prepared, settings, tmp_path):
    task = labelled()
    held = replace(task, test=[], test_label=[], names=())
    for split in (HELD_OUT, GIVEN):
        write_tasks(prepared, dev=None, test=open_tasks(PreparedData(prepared), TEST), own=[replace(task, split=split)])
        export_stage(settings(), model=models["bert"], prepared=prepared, metrics=(), bundle=tmp_path / split)
        encoder = OnnxEncoder(tmp_path / split, provider="cpu")
        learnt = held if split == GIVEN else replace(held, measured=[*zip(task.test, task.test_label, strict=True)])
        np.testing.assert_array_equal(encoder.classifier.weight, classifier_of(encoder, learnt).weight)


def test_a_trained_model_of_whose_rows_none_were_held_out_is_as_sure_as_its_bare_backbone(
    exported, run, prepared, settings, tmp_path
):
    bare = OnnxEncoder(exported(), provider="cpu").classifier.facts
    run(settings({"train.learning_rate": 0.3}))
    checkpoint, bank, bundle = tmp_path / "run/checkpoint", tmp_path / "bank", tmp_path / "trained"
    export_stage(settings(), model=checkpoint, prepared=prepared, metrics=(), bundle=bundle)
    create(str(checkpoint), bank, settings())
    added = add(str(checkpoint), bank, "tickets", settings(), data=prepared, replace=False).classifier
    for found in (OnnxEncoder(bundle, provider="cpu").classifier, added):
        assert (found.facts.accuracy, found.facts.rows) == (bare.accuracy, bare.rows)
        assert found.facts.threshold == pytest.approx(bare.threshold, abs=0.002)


@pytest.mark.parametrize("scored", [True, False])
def test_texts_that_judge_int8_do_not_calibrate_it(data, tmp_path, scored):
    prepared = PreparedData(shutil.copytree(data["sentences"], tmp_path / "prepared"))
    write_tasks(prepared.folder, dev=None, test=open_tasks(prepared, TEST) if scored else [], own=[])
    judged = sentences_for_parity(prepared)
    ranges = sentences_for_ranges(prepared, judged)
    assert len(judged) > 5 < len(ranges)
    mixed = [mixed_texts(judged=side) for side in (True, False)]
    for one, other in ((judged, ranges), mixed):
        assert not {*one} & {*other}
        assert all(len({*texts}) == len(texts) for texts in (one, other))


def test_a_domain_of_labelled_texts_keeps_its_classifier(exported, models, prepared, settings, tmp_path):
    bundle, bank, task, made = exported(), tmp_path / "bank", labelled(), settings()
    create(str(models["bert"]), bank, made)
    plain = add(str(models["bert"]), bank, "plain", made, data=None, replace=False)
    fitted = add(str(models["bert"]), bank, "fitted", made, data=prepared, replace=False)
    given = add(str(models["bert"]), bank, "given", made, data=None, replace=False, classifier=bundle)
    assert plain.classifier is None and len({replace(one, facts=replace(one.facts, name="")).identity()
                                             for one in (plain, given)}) == 1, "it makes no vectors"  # fmt: skip
    encoder, alone = OnnxEncoder(bank, provider="cpu"), OnnxEncoder(bundle, provider="cpu")
    expected = alone.classify(task.test)
    for name in ("fitted", "given"):
        for found in (encoder.classify(task.test, domain=name), encoder.of(name).classify(task.test)):
            assert [one.label for one in found] == [one.label for one in expected]
            np.testing.assert_allclose([one[1] for one in found], [one[1] for one in expected], atol=1e-4)
    assert fitted.classifier.facts.labels == given.classifier.facts.labels == ["four", "one", "three", "two"]
    mixed = encoder.classify(task.test[:4], domain=["given", "fitted"] * 2)
    assert [one.label for one in mixed] == [one.label for one in expected[:4]]
    for domain, says in (("plain", "bank:plain: no classifier"), ("auto", "domain auto has no classifier")):
        assert says in refusal(encoder.classify, task.test, domain=domain)
    said = refusal(classifier_in, bundle, "another", "hash")
    assert "of another model than this one; name the bundle that was made of it" in said
