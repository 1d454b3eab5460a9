"""What names a sweep's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from cse.settings import load_settings
from cse.training import ready, training_code
from cse.tune import driver
from cse.tune.spaces import build_space
from tests.tiny import make_backbone_folder

OVER = {"tune.over": ["prompt.length=[2, 3]"]}


@pytest.fixture
def name_of(folder, rows):
    def name(**values):
        settings = load_settings(folder / "params.yaml", OVER | values)
        return driver._name(build_space(settings), settings, rows)

    return name


def test_other_bytes_in_a_folder_that_is_searched_are_another_sweep(name_of, tmp_path):
    """Which models are read: ``tests/stages/test_inputs``."""
    models = [str(tmp_path / name) for name in ("generator", "other")]
    for seed, model in enumerate(models, start=1):
        make_backbone_folder(Path(model), "bert", seed=seed, head=True, num_hidden_layers=1)
    key = "objective.replaced_tokens.generator_folder"
    values = {
        "objective.replaced_tokens.weight": 0.1, "objective.replaced_tokens.generator": "folder", key: models[0],
        "tune.over": [f"{key}={models}"],
    }  # fmt: skip
    before = name_of(**values)
    assert name_of(**values) == before
    make_backbone_folder(Path(models[1]), "bert", seed=9, head=True, num_hidden_layers=1)
    assert name_of(**values) != before


def test_changed_code_is_another_sweep(name_of, tmp_path, monkeypatch):
    """The list itself: tests/test_architecture.py."""
    before = name_of()
    changed = tmp_path / "sts.py"
    changed.write_text("# scores otherwise")
    code = [changed if path.name == "sts.py" else path for path in training_code()]
    monkeypatch.setattr(ready, "training_code", lambda: code)
    assert name_of() != before


@pytest.mark.parametrize(("over", "another"), [("[0.01, 0.02]", True), ("1e-3..1e-2", False)], ids=["list", "search"])
def test_the_spacing_of_evaluations_counts_unless_the_search_chooses_it(name_of, over, another):
    """The best of a training is kept, so that more evaluations find a better one."""
    values = {"tune.over": [f"train.learning_rate={over}"]}
    assert (name_of(**values, **{"train.eval_every": 7}) != name_of(**values)) is another


@pytest.mark.parametrize("key", ["bank.domains", "train.save_seconds", "tune.concurrent"])
def test_what_changes_no_score_is_the_same_sweep(name_of, key):
    value = {"bank.domains": {"tickets": {"data": "data/raw/tickets"}}}.get(key, 3)
    assert name_of(**{key: value}) == name_of()
