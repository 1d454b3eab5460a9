"""How far imported embeddings are from the released code's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.cli.conftest import cse, trained  # noqa: F401 - fixtures

CLOSE = 1e-5


@pytest.fixture
def worst(record_property) -> Callable[..., None]:
    """Compare embeddings to 1e-5 and record the largest difference: ``pytest --junitxml`` shows it."""

    def compare(name: str, found: np.ndarray, expected) -> None:
        wanted = np.array(expected)
        assert found.shape == wanted.shape
        assert np.abs(wanted).max() > 0.1, "nothing to compare"
        difference = float(np.abs(found - wanted).max())
        record_property(name, difference)
        assert difference <= CLOSE, f"{name}: {difference:.1e}"

    return compare
