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
    give(folder, labelled())
    return folder


def give(prepared, *own, dev=None):
    write_tasks(prepared, dev=dev, test=open_tasks(PreparedData(prepared), TEST), own=own)


@pytest.fixture
def exported(models, prepared, settings, tmp_path):
    """Make their bundle, of the bare backbone or another model."""

    def export(precision="fp32", name="data/adapt/bundle", model=models["bert"]):
        made = settings({"export.precision": precision, "export.score_loss": 100.0})
        export_stage(made, model=model, prepared=prepared, metrics=(), bundle=tmp_path / name)
        return tmp_path / name

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
    labels = ["one", *(in_code := ["???", "TopUp", "top-up_7"])]
    found = names_of(labels, names_in(file, labels))
    assert found == (["the number one", "a first", "???", "top up", "top up 7"], ["one", "one", *in_code])
    assert "names.csv: label 'one' ('the number one') is none of the texts" in refusal(names_in, file, ["two"])


def test_held_out_rows_calibrate_it_and_test_rows_do_not(exported, prepared):
    task = labelled()
    held = replace(task, name="held out", test=task.reference[:5], test_label=task.reference_label[:5])
    held = replace(held, reference=task.reference[5:], reference_label=task.reference_label[5:])
    give(prepared, task, dev=held)
    assert OnnxEncoder(exported()).classifier.facts.rows == 5
    give(prepared)
    assert OnnxEncoder(exported()).classifier is None, "without labels it has none"


def test_rows_that_measured_are_learnt_where_the_user_gave_no_test_rows(exported, prepared):
    task = labelled()
    held = replace(task, test=[], test_label=[], names=())
    for split in (HELD_OUT, GIVEN):
        give(prepared, replace(task, split=split))
        encoder = OnnxEncoder(exported(), provider="cpu")
        learnt = held if split == GIVEN else replace(held, measured=[*zip(task.test, task.test_label, strict=True)])
        np.testing.assert_array_equal(encoder.classifier.weight, classifier_of(encoder, learnt).weight)


def test_a_trained_model_of_whose_rows_none_were_held_out_is_as_sure_as_its_bare_backbone(
    exported, run, prepared, settings, tmp_path
):
    bare = OnnxEncoder(exported(), provider="cpu").classifier.facts
    run(settings({"train.learning_rate": 0.3}))
    checkpoint, bank = tmp_path / "run/checkpoint", tmp_path / "bank"
    create(str(checkpoint), bank, settings())
    added = add(str(checkpoint), bank, "tickets", settings(), data=prepared, replace=False).classifier
    trained = exported(name="trained", model=checkpoint)
    for found in (OnnxEncoder(trained, provider="cpu").classifier, added):
        assert (found.facts.accuracy, found.facts.rows) == (bare.accuracy, bare.rows)
        assert found.facts.threshold == pytest.approx(bare.threshold, abs=0.002)


@pytest.mark.parametrize("scored", [True, False])
def test_texts_that_judge_int8_do_not_calibrate_it(prepared, scored):
    data = PreparedData(prepared)
    write_tasks(prepared, dev=None, test=open_tasks(data, TEST) if scored else [], own=[])
    judged = sentences_for_parity(data)
    ranges = sentences_for_ranges(data, judged)
    assert len(judged) > 5 < len(ranges)
    for one, other in ((judged, ranges), [mixed_texts(judged=side) for side in (True, False)]):
        assert len({*one, *other}) == len(one) + len(other)


def test_a_domain_of_labelled_texts_keeps_its_classifier(exported, models, prepared, settings, tmp_path):
    bundle, bank, task, model = exported(), tmp_path / "bank", labelled(), str(models["bert"])
    create(model, bank, settings())
    plain = add(model, bank, "plain", settings(), data=None, replace=False)
    fitted = add(model, bank, "fitted", settings(), data=prepared, replace=False)
    given = add(model, bank, "given", settings(), data=None, replace=False, classifier=bundle)
    one, other = (replace(each, facts=replace(each.facts, name="")).identity() for each in (plain, given))
    assert plain.classifier is None and one == other, "it makes no vectors"
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
