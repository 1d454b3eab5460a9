"""Stage ``export`` leaves the class means of labelled texts with a bundle, in the vectors of that bundle."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cse.data.store import PreparedData
from cse.data.tasks.store import TEST, open_tasks, write_tasks
from cse.errors import CseError
from cse.evaluation.labels import class_mean_labels
from cse.export.mix import mixed_texts
from cse.runtime.bundle import CLASSES, verify
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.stages.export import export_stage, sentences_for_parity, sentences_for_ranges
from tests.pages.blocks import run_by
from tests.stages.test_dev_task import labelled

(BLOCK,) = run_by("docs/adapt.md", __file__)


@pytest.fixture
def exported(models, data, settings, tmp_path):
    """Make a bundle where the own task is labelled texts."""
    prepared = shutil.copytree(data["sentences"], tmp_path / "prepared")
    write_tasks(prepared, dev=None, test=open_tasks(PreparedData(prepared), TEST), own=[labelled()])

    def export(precision="fp32"):
        folder = tmp_path / "data/adapt/bundle"
        made = settings({"export.precision": precision, "export.score_loss": 100.0})
        export_stage(made, model=models["bert"], prepared=prepared, metrics=(), bundle=folder)
        return folder

    return export


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_class_means_are_those_of_the_bundle_in_its_precision(exported, precision):
    folder, task = exported(precision), labelled()
    found = json.loads((folder / CLASSES).read_text())
    assert found["labels"] == ["four", "one", "three", "two"]
    encoder = OnnxEncoder(folder, provider="cpu")
    vectors = encoder.encode(task.reference, normalize=True).astype(np.float64)
    means = np.stack([vectors[np.array(task.reference_label) == label].mean(axis=0) for label in found["labels"]])
    np.testing.assert_allclose(found["means"], means / np.linalg.norm(means, axis=1, keepdims=True), atol=2e-6)
    test = encoder.encode(task.test, normalize=True)
    nearest = np.array(found["labels"])[(test @ np.array(found["means"]).T).argmax(axis=1)]
    measured = class_mean_labels(test, vectors, np.array(task.reference_label))
    np.testing.assert_array_equal(nearest, measured)


def test_they_are_sealed_with_the_bundle_and_the_page_routes_by_them(exported, tmp_path, monkeypatch, capsys):
    folder = exported()
    verify(folder)
    monkeypatch.chdir(tmp_path)
    text, label = labelled().test[0], labelled().test_label[0]
    capsys.readouterr()
    exec(BLOCK.text.replace("I have lost my card", text), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{text} {label} ") and second.startswith("how many dollars for a euro? ")
    (folder / CLASSES).write_text((folder / CLASSES).read_text().replace("four", "five"))
    with pytest.raises(CseError, match=r"classes\.json"):
        verify(folder)


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


def test_a_bundle_of_text_without_labels_has_none(models, data, settings, tmp_path):
    export_stage(settings(), model=models["bert"], prepared=data["sentences"], metrics=(), bundle=tmp_path / "bundle")
    assert not (tmp_path / "bundle" / CLASSES).exists()
