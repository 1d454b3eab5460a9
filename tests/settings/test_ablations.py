"""Ablations: every cell is a valid setting around the preset that its hint names."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.settings.load import flatten, load_settings
from cse.settings.presets import apply_preset, rows
from cse.settings.spaces import ablation_names, load_ablation


def settings_of(preset, folder):
    apply_preset(preset, folder / "params.yaml")
    return load_settings(folder / "params.yaml")


@pytest.mark.parametrize("name", ablation_names())
def test_every_cell_is_valid_and_differs_from_the_others(name, tmp_path):
    grid = load_ablation(name)
    settings = settings_of(grid.hint.split()[-1], tmp_path)
    cells = grid.grid(settings)
    assert len(cells) >= 5
    found = [flatten(load_settings(tmp_path / "params.yaml", cell.changes).model_dump()) for cell in cells]
    assert len({str(values) for values in found}) == len(cells)
    for cell, values in zip(cells, found, strict=True):
        assert {key: values[key] for key in cell.changes} == dict(cell.changes)


def test_margins_are_those_of_the_table():
    published = {row.selector.setting.partition("m=")[2] for row in rows() if row.selector.model.startswith("SimCSE")
                 and (row.selector.paper, row.selector.table) == ("PromCSE", 4)}  # fmt: skip
    assert {"w/o", *(f"{value:g}" for value in load_ablation("margin").values)} == published


def test_other_values(tmp_path):
    settings = settings_of("promcse-kv-minilm", tmp_path)
    cells = load_ablation("prompt-length").grid(settings, [3, 5])
    assert [(cell.label, cell.value, dict(cell.changes)) for cell in cells] == [
        ("prompt length 3", 3.0, {"prompt.length": 3}),
        ("prompt length 5", 5.0, {"prompt.length": 5}),
    ]


@pytest.mark.parametrize(
    ("name", "preset", "values", "message"),
    [
        ("margin", "promcse-kv-minilm", None, r"energy_hinge.weight is 0.0, but must be above 0; try `cse preset use"),
        ("prompt-length", "simcse-small-minilm", None, "train.parameters is full, but must be prompts"),
        ("d2cse", "d2cse-d-minilm", [1.0], "does not vary a number; leave --values out"),
    ],
)
def test_settings_that_an_ablation_cannot_vary(name, preset, values, message, tmp_path):
    with pytest.raises(CseError, match=message):
        load_ablation(name).grid(settings_of(preset, tmp_path), values)


def test_an_unknown_ablation_names_the_nearest():
    with pytest.raises(CseError, match=r"marign: no such ablation; did you mean 'margin'\?; there are prompt-length, "):
        load_ablation("marign")
