"""A tiny backbone with its head, a generator, and prepared rows of each view."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cse.settings.load import Settings, check_settings, set_key
from cse.training.ready import Training, open_training
from tests.stages.training import train_in
from tests.systems.tiny import make_views, write_words
from tests.tiny import make_backbone_folder

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # alike with and without dropout


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """Folders of a backbone with and without its MLM head, generators, and a file of word vectors."""
    root = tmp_path_factory.mktemp("models")
    return {
        "bert": make_backbone_folder(root / "bert", "bert", head=True),
        "headless": make_backbone_folder(root / "headless", "bert"),
        "roberta": make_backbone_folder(root / "roberta", "roberta", head=True),
        "generator": make_backbone_folder(root / "generator", "bert", seed=1, head=True, num_hidden_layers=1, **STILL),
        "words": write_words(root / "glove.txt"),
    }


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> dict[str, Path]:
    """Prepared folders by view, with dev pairs and one task."""
    return make_views(tmp_path_factory.mktemp("data"), {"sentences": 60, "triplets": 24, "labelled": 24}, dev=20)


@pytest.fixture(scope="session")
def settings(models) -> Callable[..., Settings]:
    """Settings of a quick unsupervised run with some values changed: ``settings({"train.seed": 1})``."""
    quick = {
        "data.view": "sentences", "backbone.name": str(models["bert"]), "prompt.length": 4,
        "objective.energy_hinge.weight": 0.0, "train.batch_size": 8, "train.max_length": 12, "train.epochs": 2,
        "train.eval_every": 5, "train.precision": "fp32", "train.device": "cpu", "evaluation.device": "cpu",
    }  # fmt: skip

    def make(changes: dict | None = None) -> Settings:
        tree: dict = {}
        for key, value in (quick | (changes or {})).items():
            set_key(tree, key, value)
        return check_settings(tree, where="test")

    return make


@pytest.fixture
def run(data, tmp_path) -> Callable[..., dict]:
    """Train on a view into a folder of the test's own, and return the metrics; one scratch for all of a test."""

    def call(settings: Settings, name: str = "run", view: str = "sentences") -> dict:
        train_in(tmp_path / name, settings, data[view], scratch=tmp_path / "scratch")
        return json.loads((tmp_path / name / "train.json").read_text(encoding="utf-8"))

    return call


@pytest.fixture
def opened(data, tmp_path) -> Callable[..., Training]:
    """Open a training on a view: all that is done before a step."""

    def call(settings: Settings, view: str = "sentences") -> Training:
        return open_training(settings, data[view], scratch=tmp_path / "scratch")

    return call
