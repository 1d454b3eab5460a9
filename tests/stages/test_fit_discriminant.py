"""Heads from prepared labels: which texts they see, shrinkage and passes, in training and behind a model."""

import re

import numpy as np
import pytest
import torch

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.evaluation.labels import same_label_precisions
from cse.model.checkpoint import read_config
from cse.model.post import fit_discriminant, numbered
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.data import DataSettings
from cse.training.fit_post import (
    PASSES,
    SHRINKAGES,
    choose_passes,
    choose_shrinkage,
    fit_linear,
    labelled_texts,
    put_behind,
)
from tests.parts import refusal
from tests.rows import write_table
from tests.stages.test_dev_task import TEXTS
from tests.stages.training import train_in

ROWS = [(text, label) for label, texts in TEXTS.items() for text in texts]


def prepared_from(folder, rows, **settings):
    """Prepare labelled texts."""
    path = str(write_table(folder / "train.csv", ("text", "label"), rows))
    data = DataSettings(source="files", view="categories", train_path=path, dev="own", **settings)
    prepare(data, folder / "prepared", progress=False)
    return folder / "prepared"


@pytest.fixture
def prepared(tmp_path):
    return prepared_from(tmp_path, ROWS, hold_out=0.2)


def noisy(labels: int, rows: int, width: int = 24, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Rows of each label around its mean in four channels; what tells them apart is small, what does not is large."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(labels), rows)
    vectors = rng.normal(size=(len(label), width)) * np.geomspace(8, 0.5, width)
    vectors[:, -4:] += rng.normal(size=(labels, 4))[label]
    order = rng.permutation(len(label))
    return vectors[order].astype(np.float32), [f"label {one:03}" for one in label[order]]


def test_texts_with_two_labels_are_left_out_and_counted(tmp_path, capsys):
    rows = [*ROWS, ("the old cat", "one"), ("the old cat", "two"), (ROWS[0][0], "four")]
    several = {text for text, _ in rows if len({label for other, label in rows if other == text}) > 1}
    found = labelled_texts(PreparedData(prepared_from(tmp_path, rows)))
    assert found == {text: label for text, label in rows if text not in several}
    assert several >= {"the old cat", ROWS[0][0]} and f"{len(several)} of " in capsys.readouterr().err


@pytest.mark.parametrize("view", ["sentences", "labelled"])
def test_rows_without_labels_are_refused_before_encoding(data, models, settings, tmp_path, monkeypatch, view):
    """The labels of NLI pairs are of pairs, not of texts."""
    monkeypatch.setattr(SentenceEncoder, "encode_counting", lambda *_, **__: pytest.fail("encoded"))
    post, out = settings({"post.kind": "discriminant"}).post, tmp_path / "out"
    said = refusal(put_behind, str(models["bert"]), post, prepared=data[view], out=out)
    assert "its texts have no labels; prepare texts with labels (data.view: categories)" in said
    assert not out.exists()


def test_the_score_of_a_shrinkage_is_that_of_folds_fitted_one_by_one():
    vectors, labels = noisy(7, 13)
    label, order = numbered(labels), np.argsort(labels, kind="stable")
    expected = {}
    for shrinkage in SHRINKAGES:
        every = []
        for fold in range(5):
            held = order[np.arange(len(order)) // 2 % 5 == fold]
            rest = np.setdiff1d(order, held)
            fitted = fit_discriminant(vectors[rest], [labels[row] for row in rest], shrinkage)
            every += [*precisions(fitted, vectors[held], label[held])]
        assert len(every) > 60
        expected[shrinkage] = np.mean(every)
    found = choose_shrinkage(vectors, labels, None)
    assert found == pytest.approx(expected, abs=1e-6)
    assert len({round(score, 4) for score in found.values()}) > 1


def test_behind_a_model_it_raises_the_dev_score_and_is_recorded(models, settings, prepared, tmp_path, capsys):
    post = settings({"post.kind": "discriminant"}).post
    facts = put_behind(str(models["bert"]), post, prepared=prepared, out=tmp_path / "out", measure="MAP")
    said = capsys.readouterr()
    before, after = map(float, re.search(r"dev MAP (\d+\.\d\d) -> (\d+\.\d\d)$", said.out.strip()).groups())
    assert after > before + 10
    assert facts == {"dev_score": pytest.approx(after, abs=0.01), "dev_measure": "MAP"}
    assert read_config(tmp_path / "out")["facts"] == facts
    chosen = re.search(r"shrinkage (0\.\d+) \(MAP of held-out texts: 0.01 \d+\.\d\d, ", said.err)
    fitted = labelled_texts(PreparedData(prepared))
    vectors = SentenceEncoder.load(models["bert"]).encode(list(fitted), normalize=False)
    expected = fit_discriminant(vectors, list(fitted.values()), float(chosen.group(1)))
    found = SentenceEncoder.load(tmp_path / "out").post.matrix
    torch.testing.assert_close(found, expected.matrix, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_keeps_its_facts_and_names_the_post_processing(settings, prepared, tmp_path):
    chosen = settings({"data.view": "categories", "train.dev_measure": "MAP"})
    train_in(tmp_path, chosen, prepared, checkpoint=tmp_path / "plain")
    post = settings({"post.kind": "discriminant", "post.dimension": 2}).post
    scores = put_behind(str(tmp_path / "plain"), post, prepared=prepared, out=tmp_path / "out", measure="MAP")
    plain, behind = (read_config(tmp_path / name)["facts"] for name in ("plain", "out"))
    assert behind["dev_score"] == scores["dev_score"] != plain["dev_score"]
    assert "start_dev_score" not in behind
    assert (behind["steps"], behind["data"]) == (plain["steps"], plain["data"])
    assert (plain["settings"]["post"]["kind"], behind["settings"]["post"]["kind"]) == ("none", "discriminant")
    assert SentenceEncoder.load(tmp_path / "out").dimension == 2


def bent(labels: int, rows: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Labels of two clusters each, far from each other: their means and covariance do not tell them apart."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(labels), rows)
    centres = rng.normal(size=(labels, 2, 16)) * 2
    vectors = centres[label, rng.integers(0, 2, len(label))] + rng.normal(size=(len(label), 16))
    return vectors.astype(np.float32), [f"label {one:03}" for one in label]


def precisions(fitted, vectors, label) -> np.ndarray:
    """The average precision of each row's search for the others of its label, behind a fitted map."""
    projected = torch.nn.functional.normalize(fitted(torch.from_numpy(vectors))).numpy()
    return same_label_precisions(projected, label)


def test_it_ranks_new_texts_better_than_the_discriminant_that_it_starts_from():
    vectors, labels = bent(9, 160)
    train, test = ((vectors[part::2], labels[part::2]) for part in (0, 1))
    start, fitted = fit_discriminant(*train, 0.1), fit_linear(*train, 0.1, None, seed=1)
    assert fitted.config() == start.config() | {"kind": "linear"}
    before, after = (precisions(each, test[0], numbered(test[1])).mean() for each in (start, fitted))
    assert after > before + 0.01


def test_the_passes_are_those_that_held_out_texts_choose_and_a_seed_gives_the_same_bits(capsys, monkeypatch):
    scores = choose_passes(*noisy(7, 13), 0.1, None, seed=1)
    assert list(scores) == list(PASSES)
    fit_linear(*noisy(7, 13), 0.1, None, seed=1)
    best = max(scores, key=scores.get)
    assert capsys.readouterr().err.startswith(f"{best} passes (MAP of held-out texts: {PASSES[0]} ")
    monkeypatch.setattr("cse.training.fit_post.PASSES", (5,))
    one, again, other = (fit_linear(*bent(5, 60), 0.1, None, seed).matrix for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize("sizes", [[2, 1, 1, 1], [2, 2], [30, 1]])
def test_too_few_texts_to_hold_out_is_the_discriminant(sizes, capsys):
    labels = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    vectors = np.random.default_rng(0).normal(size=(len(labels), 8)).astype(np.float32)
    assert max(sizes) > 2 or choose_shrinkage(vectors, labels, None) == {}
    fitted = fit_linear(vectors, labels, 0.1, None, seed=1)
    assert fitted.dimension == len(sizes) - 1
    said = capsys.readouterr().err
    assert "one dimension is left" in said or "0 passes (too few texts of a label to hold any out)" in said
