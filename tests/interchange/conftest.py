"""Models to write and read."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cse.model.sentence_encoder import SentenceEncoder
from tests.cli.conftest import cse, made, project, trained  # noqa: F401 - fixtures
from tests.export.systems import make_encoder
from tests.model.families import make_family_folder
from tests.parts import backbone_of


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
