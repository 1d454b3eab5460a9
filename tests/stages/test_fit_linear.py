"""A linear head: its loss against the written-out equation, and how many passes it gets; behind a model: adapt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cse.evaluation.labels import same_label_precisions
from cse.model.post import fit_discriminant, numbered
from cse.training.fit_post import PASSES, choose_passes, fit_linear
from tests.stages.test_fit_discriminant import noisy


def bent(labels: int, rows: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Labels of two clusters each, far from each other: their means and covariance do not tell them apart."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(labels), rows)
    centres = rng.normal(size=(labels, 2, 16)) * 2
    vectors = centres[label, rng.integers(0, 2, len(label))] + rng.normal(size=(len(label), 16))
    return vectors.astype(np.float32), [f"label {one:03}" for one in label]


def found_again(fitted, vectors, labels) -> float:
    projected = torch.nn.functional.normalize(fitted(torch.from_numpy(vectors))).numpy()
    return float(same_label_precisions(projected, numbered(labels)).mean())


def test_it_ranks_new_texts_better_than_the_discriminant_that_it_starts_from():
    vectors, labels = bent(9, 160)
    seen, new = np.arange(len(labels)) % 2 == 0, np.arange(len(labels)) % 2 == 1
    train, test = ((vectors[part], [labels[row] for row in np.flatnonzero(part)]) for part in (seen, new))
    start, fitted = fit_discriminant(*train, 0.1), fit_linear(*train, 0.1, None, seed=1)
    assert fitted.config() == start.config() | {"kind": "linear"}
    assert found_again(fitted, *test) > found_again(start, *test) + 0.01


def test_the_passes_are_those_that_held_out_texts_choose(capsys):
    for data in (noisy(7, 13), bent(5, 60)):
        scores = choose_passes(*data, 0.1, None, seed=1)
        assert list(scores) == list(PASSES)
        fit_linear(*data, 0.1, None, seed=1)
        best = max(scores, key=scores.get)
        tried = ", ".join(f"{count} {100 * score:.2f}" for count, score in scores.items())
        assert capsys.readouterr().err == f"{best} passes (MAP of held-out texts: {tried})\n"


def test_no_pass_is_the_discriminant(monkeypatch):
    vectors, labels = noisy(7, 13)
    monkeypatch.setattr("cse.training.fit_post.PASSES", (0,))
    start, fitted = fit_discriminant(vectors, labels, 0.1), fit_linear(vectors, labels, 0.1, None, seed=1)
    x = torch.from_numpy(vectors)
    cosines = torch.nn.functional.cosine_similarity(start(x), fitted(x) * start(x).norm(dim=1, keepdim=True).mean())
    torch.testing.assert_close(cosines, torch.ones(len(x)))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(monkeypatch):
    monkeypatch.setattr("cse.training.fit_post.PASSES", (5,))
    one, again, other = (fit_linear(*bent(5, 60), 0.1, None, seed).matrix for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("sizes", [[2, 1, 1, 1], [2, 2], [30, 1]])
def test_too_few_texts_to_hold_out_is_the_discriminant(sizes, capsys):
    labels = [str(number) for number, size in enumerate(sizes) for _ in range(size)]
    vectors = np.random.default_rng(0).normal(size=(len(labels), 8)).astype(np.float32)
    fitted = fit_linear(vectors, labels, 0.1, None, seed=1)
    assert fitted.dimension == len(sizes) - 1
    said = capsys.readouterr().err
    assert "one dimension is left" in said or "0 passes (too few texts of a label to hold any out)" in said
