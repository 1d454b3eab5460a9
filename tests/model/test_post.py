"""Whitening, discriminant and flow: numerics against references, what they do to vectors, errors."""

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from cse.model.flow import Flow
from cse.model.post import fit_discriminant, fit_whitening
from tests.parts import new_flow

WIDTH = 16


def anisotropic(rows: int, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    """Correlated gaussian vectors in a narrow cone, as a language model gives them: far mean, unequal directions."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((width, width)) * np.geomspace(2.0, 0.1, width)
    return (rng.standard_normal((rows, width)) @ mixing.T + rng.uniform(1, 3, width)).astype(np.float32)


def apply(module, vectors: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(vectors)).numpy()


class TestWhitening:
    def test_equals_the_published_formula_in_float64_and_a_far_mean_does_not_cancel(self):
        vectors = anisotropic(5000)  # more than one block of the fit
        u, s, _ = np.linalg.svd(np.cov(vectors.T.astype(np.float64)))
        expected = (vectors - vectors.mean(0, dtype=np.float64)) @ u @ np.diag(s**-0.5)
        found = apply(fit_whitening(vectors), vectors)
        # the sign of a direction is free
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)
        np.testing.assert_allclose(found @ found[:50].T, expected @ expected[:50].T, atol=2e-3)
        far = anisotropic(500) + np.float32(1000)
        exact = np.linalg.svd(np.cov(far.T.astype(np.float64)))[1] ** -0.5
        np.testing.assert_allclose(fit_whitening(far).matrix.norm(dim=0).numpy(), exact, rtol=1e-5)

    def test_a_direction_without_variance_is_left_out(self):
        """Vectors behind a LayerNorm sum to a constant: the published formula would divide by rounding errors."""
        vectors = torch.nn.functional.layer_norm(torch.from_numpy(anisotropic(500)), (WIDTH,)).numpy()
        whitening = fit_whitening(vectors)
        assert whitening.matrix.any(dim=0).tolist() == [True] * (WIDTH - 1) + [False]
        found = apply(whitening, vectors)[:, :-1]
        np.testing.assert_allclose(np.cov(found.T), np.eye(WIDTH - 1), atol=1e-4)
        few = np.repeat(vectors[:10], 30, axis=0)
        np.testing.assert_allclose(np.cov(apply(fit_whitening(few, 9), few).T), np.eye(9), atol=1e-4)


def labelled(sizes: list[int], width: int = WIDTH, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Anisotropic vectors around a mean per label, in mixed order; ``sizes`` are the numbers of rows."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation([f"label {number}" for number, size in enumerate(sizes) for _ in range(size)])
    means = {label: rng.standard_normal(width) for label in sorted(set(labels))}
    vectors = anisotropic(len(labels), width, seed) + np.array([means[label] for label in labels])
    return vectors.astype(np.float32), labels.tolist()


def eigenvectors(vectors: np.ndarray, labels: list[str], shrinkage: float) -> np.ndarray:
    """The definition written out: both covariances label by label, and the generalised eigenproblem."""
    x, width = vectors.astype(np.float64), vectors.shape[1]
    within, between = np.zeros((width, width)), np.zeros((width, width))
    for label in set(labels):
        rows = x[np.array(labels) == label]
        within += len(rows) / len(x) * np.cov(rows.T, bias=True)
        away = rows.mean(0) - x.mean(0)
        between += len(rows) / len(x) * np.outer(away, away)
    shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / width * np.eye(width)
    values, found = scipy.linalg.eigh(between, shrunk)
    rank = int((values > 1e-9 * values[-1]).sum())
    return found[:, ::-1][:, :rank]


class TestDiscriminant:
    @pytest.mark.parametrize("shrinkage", [0.01, 0.3, 1.0])
    @pytest.mark.parametrize(
        "sizes", [[40, 7, 13], [5, 1, 90, 2, 33], [3] * 41, [4500, 10]],
        ids=["uneven", "one of one row", "more labels than channels", "two blocks"],
    )  # fmt: skip
    def test_equals_the_generalised_eigenproblem(self, sizes, shrinkage):
        vectors, labels = labelled(sizes)
        expected = (vectors - vectors.mean(0, dtype=np.float64)) @ eigenvectors(vectors, labels, shrinkage)
        found = apply(fit_discriminant(vectors, labels, shrinkage), vectors)
        assert found.shape[1] == min(len(sizes) - 1, WIDTH)
        # the sign of a direction is free
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4 * np.abs(expected).max())
        np.testing.assert_allclose(found @ found[:50].T, expected @ expected[:50].T, atol=1e-4 * found.max() ** 2)

    def test_dimension_keeps_the_leading_directions_and_more_than_there_are_keep_all(self):
        vectors, labels = labelled([20] * 6)
        full = fit_discriminant(vectors, labels, 0.1)
        assert torch.equal(fit_discriminant(vectors, labels, 0.1, 3).matrix, full.matrix[:, :3])
        assert torch.equal(fit_discriminant(vectors, labels, 0.1, WIDTH).matrix, full.matrix)
        largest = full.matrix.abs().argmax(0)
        assert (full.matrix[largest, range(5)] > 0).all()
        # and a far mean does not cancel
        far = vectors + np.float32(1000)
        exact = eigenvectors(far - far.mean(0, dtype=np.float64), labels, 0.1)
        found = fit_discriminant(far, labels, 0.1).matrix.numpy()
        np.testing.assert_allclose(np.abs(found), np.abs(exact), rtol=1e-5, atol=1e-6)


def trained(**options) -> Flow:
    """A flow of 8 channels whose every weight has moved away from its start."""
    return new_flow(anisotropic(640, 8), learning_rate=1e-2, epochs=2, **options)


class TestFlow:
    def test_equals_the_algorithm_written_out(self):
        """Glow on a vector, by hand in float64 from the stored weights; 8 channels, 2 levels of 2 steps."""
        flow = trained(levels=2, depth=2, hidden=4)
        weights = {name: value.numpy().astype(np.float64) for name, value in flow.state_dict().items()}
        vectors = anisotropic(5, 8)

        def scaled(x, name):
            return (x + weights[f"{name}.shift"]) * np.exp(3 * weights[f"{name}.log_scale"])

        x, latents = vectors.astype(np.float64), []
        for level in range(2):
            for step in range(2):
                name = f"levels.{level}.{step}"
                x = scaled(x, f"{name}.norm")[:, ::-1]
                half = x.shape[1] // 2
                shift = x[:, :half]
                for layer in (0, 3, 6):
                    shift = scaled(shift @ weights[f"{name}.coupling.{layer}.weight"].T, f"{name}.coupling.{layer + 1}")
                    shift = np.maximum(shift, 0) if layer < 6 else shift
                assert np.abs(shift).max() > 1e-3
                x = np.concatenate([x[:, :half], x[:, half:] + shift], axis=1)
            if level == 0:
                latents.append(x[:, 4:])
                x = x[:, :4]
        np.testing.assert_allclose(apply(flow, vectors), np.concatenate([*latents, x], axis=1), atol=1e-5)

    def test_log_likelihood_is_the_density_of_the_latents_times_the_jacobian(self):
        flow = trained().double()
        vectors = torch.from_numpy(anisotropic(4, 8)).double()
        found = flow.log_likelihood(vectors)
        assert found.shape == (4,)
        for row, value in zip(vectors, found, strict=True):
            jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0], row)
            density = scipy.stats.norm.logpdf(flow(row[None])[0].numpy()).sum()
            assert value.item() == pytest.approx(density + np.linalg.slogdet(jacobian.numpy())[1], abs=1e-10)

    def test_training_raises_the_likelihood_of_correlated_data(self):
        """It must beat independent channels, and cannot beat the distribution that the data come from."""
        data, unseen = np.split(anisotropic(4000, 8), 2)
        exact = scipy.stats.multivariate_normal(unseen.mean(0), np.cov(unseen.T)).logpdf(unseen).mean()
        start, end = (
            new_flow(data, learning_rate=rate, epochs=epochs).log_likelihood(torch.from_numpy(unseen)).mean().item()
            for rate, epochs in ((0.0, 1), (3e-3, 2))
        )
        assert start + 3 < end < exact + 0.05

    def test_a_channel_that_never_varies_neither_breaks_training_nor_is_blown_up(self):
        """MiniLM has three; the published start would multiply their rounding errors by 1e6 in every step."""
        vectors = anisotropic(640)
        vectors[:, 3] = 0.5
        vectors[::2, 3] += 1e-7
        before = vectors.copy()
        latents = apply(new_flow(vectors, epochs=3), vectors)
        assert np.array_equal(vectors, before)
        deviations = np.sort(latents.std(0))
        assert deviations[0] < 0.4 < deviations[1] and deviations[-1] < 2
