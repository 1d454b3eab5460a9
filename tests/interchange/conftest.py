from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.sentence_encoder import SentenceEncoder
from tests.export.exports import make_encoder
from tests.model.families import make_family_folder


class Written(NamedTuple):
    """An encoder and its folder."""

    encoder: SentenceEncoder
    folder: Path


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
        return make_encoder(load_backbone(find_backbone(str(folder(name)))), kind, **options)

    return get
