"""Models to write and read, and how far embeddings are from their reference."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cse.model.sentence_encoder import SentenceEncoder
from tests.cli.conftest import cse, trained  # noqa: F401 - fixtures
from tests.export.systems import make_encoder
from tests.model.families import make_family_folder
from tests.parts import backbone_of

CLOSE = 1e-5


@pytest.fixture(autouse=True)
def in_code_cache(code_cache):
    """Every test here may load a model with code of its own."""


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> Callable[..., SentenceEncoder]:
    """An encoder of a family with a random prompt: ``encoders("bert", "key_value", pooler="mean")``."""

    @functools.cache
    def folder(name: str) -> Path:
        return make_family_folder(tmp_path_factory.mktemp("backbone"), name)

    def get(name: str, kind: str | None = "key_value", **options: Any) -> SentenceEncoder:
        return make_encoder(backbone_of(folder(name)), kind, **options)

    return get


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
