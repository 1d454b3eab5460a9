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


@pytest.fixture(scope="session", autouse=True)
def code_cache(tmp_path_factory):
    """Keep the copies of models' code, which transformers makes, out of the user's cache."""
    from transformers import dynamic_module_utils

    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.setenv("HF_MODULES_CACHE", str(folder))  # of subprocesses
        yield folder


@pytest.fixture(scope="session")
def encoders(tmp_path_factory) -> Callable[..., SentenceEncoder]:
    """An encoder of a family with a random prompt: ``encoders("bert", "key_value", pooler="mean")``."""

    @functools.cache
    def folder(name: str) -> Path:
        return make_family_folder(tmp_path_factory.mktemp("backbone"), name)

    def get(name: str, kind: str | None = "key_value", **options: Any) -> SentenceEncoder:
        return make_encoder(load_backbone(find_backbone(str(folder(name)))), kind, **options)

    return get
