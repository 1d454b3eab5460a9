"""Values passed through DVC's command line, whose grammar has its own brackets, quotes and commas."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from cse.errors import CseError
from flows.ablate import _numbers, set_param

PARAMS = Path(__file__).parents[2] / "params.yaml"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.train_path", "a b's (x), {y}=z.csv"),
        ("data.score_range", [0.0, 1.0]),
        ("data.columns", ["first text", "second"]),
        ("data.drop", []),
        ("prompt.dropout", None),
        ("prompt.length", 7),
        ("train.learning_rate", 5.0e-5),
        ("template.text", 'This "{sentence}" means {mask} .'),
    ],
)
def test_a_value_arrives_as_it_was_whether_or_not_the_file_had_one(key, value, tmp_path):
    params = Path(shutil.copy(PARAMS, tmp_path))
    apply_overrides(params, [set_param(key, value)])
    group, name = key.split(".")
    assert YAML(typ="safe").load(params)[group][name] == value


def test_numbers():
    assert _numbers("4,12,4, 0.5", "--values") == [4, 12, 0.5]
    assert isinstance(_numbers("4", "--values")[0], int)
    with pytest.raises(CseError, match="--seeds x: separate numbers with commas, for instance 4,12,20"):
        _numbers("x", "--seeds")
