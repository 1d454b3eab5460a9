"""The driver without trials: what names a sweep's folder, and what trials are told of GPUs."""

from __future__ import annotations

import json
import shutil

import pytest

from cse.errors import CseError
from cse.settings import load_settings
from cse.training import ready, training_code
from cse.tune import driver
from cse.tune.spaces import build_space
from tests.stages.test_inputs import write_prompt
from tests.tiny import make_backbone_folder

OVER = {"tune.over": ["prompt.length=[2, 3]"]}
DETECTS = {"objective.replaced_tokens.weight": 0.1}
OWN = {"objective.replaced_tokens.generator": "folder"}


@pytest.fixture
def models(tiny_folders, tmp_path):
    """Folders of the models that trials read, to change at will."""
    folders = {"backbone": shutil.copytree(tiny_folders["bert"], tmp_path / "bert")}
    for seed, name in enumerate(("generator", "other generator"), start=1):
        folders[name] = make_backbone_folder(tmp_path / name, "bert", seed=seed, head=True, num_hidden_layers=1)
    folders["start"] = write_prompt(tmp_path / "start", folders["backbone"], 0.1)
    return folders


@pytest.fixture
def name_of(folder, models):
    def name(**values):
        settings = load_settings(folder / "params.yaml", {"backbone.name": str(models["backbone"]), **OVER, **values})
        return driver._name(build_space(settings), settings, folder / "data/prepared", folder / "data/corrupted")

    return name


def change(models, what):
    """Other bytes under the same name."""
    if what == "start":
        write_prompt(models["start"], models["backbone"], 0.2)
    elif what == "weights":
        make_backbone_folder(models["backbone"], "bert", seed=9)
    elif what == "configuration":
        path = models["backbone"] / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_norm_eps": 1e-6}))
    else:
        make_backbone_folder(models[what], "bert", seed=9, head=True, num_hidden_layers=1)


@pytest.mark.parametrize("what", ["weights", "configuration", "start", "generator", "other generator"])
def test_other_bytes_in_the_same_folder_are_another_sweep(name_of, models, what):
    values = {
        "weights": {},
        "configuration": {},
        "start": {"prompt.init": "checkpoint", "prompt.init_checkpoint": str(models["start"])},
        "generator": DETECTS | OWN | {"objective.replaced_tokens.generator_folder": str(models["generator"])},
        "other generator": DETECTS  # one of those that are searched
        | OWN
        | {
            "objective.replaced_tokens.generator_folder": str(models["generator"]),
            "tune.over": [
                f"objective.replaced_tokens.generator_folder=['{models['generator']}', '{models['other generator']}']"
            ],
        },
    }[what]
    if what == "start":
        values |= {"tune.over": ["prompt.dropout=[0.0, 0.1]"]}
    before = name_of(**values)
    assert name_of(**values) == before
    change(models, what)
    assert name_of(**values) != before


def test_a_missing_model_is_one_line_before_any_trial(name_of):
    with pytest.raises(CseError, match=r"^objective\.replaced_tokens\.generator: no folder no/such/folder"):
        name_of(**DETECTS, **{"objective.replaced_tokens.generator": "no/such/folder"})


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
