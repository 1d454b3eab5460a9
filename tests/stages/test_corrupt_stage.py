"""Stage ``corrupt``: the same bytes for the same seed, and a folder that says so where there is nothing to do."""

from __future__ import annotations

import json

import numpy as np

from cse.stages.corrupt import corrupt_stage
from tests.cli.workspace import contents


def test_a_folder_that_says_that_nothing_is_wanted(settings, data, tmp_path, capsys):
    for changes in ({}, {"objective.replaced_tokens.weight": 0.1}):
        corrupt_stage(settings(changes), prepared=data["sentences"], corrupted=tmp_path / "out")
        assert sorted(contents(tmp_path / "out")) == ["corruption.json", "manifest.json"]
        assert json.loads((tmp_path / "out/corruption.json").read_text()) == {"corruption": "none"}
        assert "nothing to corrupt (" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bytes(settings, data, prepared_corruption, tmp_path):
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        changed = settings(prepared_corruption | {"train.seed": seed})
        corrupt_stage(changed, prepared=data["triplets"], corrupted=tmp_path / name)
    one, two, other = (contents(tmp_path / name) for name in ("one", "two", "other"))
    arrays = {f"epoch-{epoch}-view-{view}.npy" for epoch in range(2) for view in range(3)}
    assert set(one) == arrays | {"corruption.json", "rows.json", "manifest.json"}
    assert one == two
    assert all(one[name] != other[name] for name in arrays)
    facts = json.loads(one["corruption.json"])
    assert (facts["corruption"], facts["rows"], facts["epochs"]) == ("prepared", 24, 2)
    assert facts["generator"] == prepared_corruption["objective.replaced_tokens.generator_folder"]
    assert np.load(tmp_path / "one/epoch-0-view-0.npy").dtype == np.int32
