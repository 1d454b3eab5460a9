"""The divergence from a teacher's similarities: texts of the same row are left out."""

from __future__ import annotations

import math

import pytest
import torch

from cse.losses.distillation import similarity_divergence

ROWS, VIEWS = 4, 3


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    student, teacher = (torch.randn(ROWS * VIEWS, width, generator=generator, dtype=torch.float64) for width in (5, 7))
    return student, teacher


def shares(vectors: list[list[float]], text: int, temperature: float) -> dict[int, float]:
    def cos(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    others = [other for other in range(len(vectors)) if other % ROWS != text % ROWS]
    assert len(others) == (ROWS - 1) * VIEWS
    weights = {other: math.exp(cos(vectors[text], vectors[other]) / temperature) for other in others}
    return {other: weight / sum(weights.values()) for other, weight in weights.items()}


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_value(vectors, temperature):
    student, teacher = vectors
    expected = 0.0
    for text in range(ROWS * VIEWS):
        wanted, found = (shares(each.tolist(), text, temperature) for each in (teacher, student))
        expected += sum(wanted[other] * math.log(wanted[other] / found[other]) for other in wanted)
    found = similarity_divergence(student, teacher, rows=ROWS, temperature=temperature)
    assert found.item() == pytest.approx(expected / (ROWS * VIEWS), rel=1e-10)
