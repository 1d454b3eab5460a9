"""Tiny backbones with their MLM heads, which no test changes."""

from pathlib import Path

import pytest

from tests.tiny import make_backbone_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    return {family: make_backbone_folder(root / family, family, head=True) for family in ("bert", "roberta")}


@pytest.fixture(scope="session")
def folder(folders) -> Path:
    return folders["bert"]
