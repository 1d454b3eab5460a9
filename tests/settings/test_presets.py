"""Presets are whole, and writing one into ``params.yaml`` leaves the rest of it alone.

tests/systems/test_every_preset.py holds what their parts compute against recorded losses, with small batches and rates.
That rates, batch sizes and epochs are the published ones is read in presets.yaml, beside their sources.
"""

from copy import deepcopy
from itertools import groupby
from pathlib import Path

import pytest
from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update
from ruamel.yaml import YAML

from cse.settings import Settings, check_settings, load_settings
from cse.settings.document import _edit, params_text, write_values
from cse.settings.load import flatten, set_key, walk_keys
from cse.settings.presets import MACHINE_KEYS, apply_preset, load_preset, preset_names
from tests.parts import refusal


def settings_of(name):
    tree = {}
    for key, value in load_preset(name).settings.items():
        set_key(tree, key, value)
    return check_settings(tree, where=name)


# All that decides which rows a hub's file gives.
AS_PUBLISHED = {
    "data.columns": None, "data.encoding": "utf-8",
    "data.max_rows": None, "data.max_words": 1000, "data.drop": [],
}  # fmt: skip
# Trained on sentences of the STS tasks, which no hub has as one file: without it, `prepare` says what is missing.
ON_STS = {"consert-unsup-bert-base", "consert-sup-bert-base", "mirror-unsup-bert-base", "sgopt-unsup-bert-base"}


def test_a_paper_brings_its_rows_and_this_projects_own_systems_take_the_users():
    for name in preset_names():
        preset = load_preset(name)
        data = {key: value for key, value in preset.settings.items() if key.startswith("data.")}
        fits = {key: data.pop(key) for key in ("data.view", "data.hub_id", "data.hub_file")}
        assert None not in fits.values(), name
        if "minilm" in name:
            assert data == {}, name
            assert preset.data == f"yours (data.view: {fits['data.view']})"
        else:
            assert data == {"data.source": "files" if name in ON_STS else "hub"} | AS_PUBLISHED, name
            where = f"{fits['data.hub_id']}/{fits['data.hub_file']} from the hub; "
            assert name in ON_STS or preset.data.startswith(where), name
        assert not (preset.rows and "minilm" in name), name


def test_presets_say_what_they_are_and_name_known_keys_but_none_of_the_machine():
    known = {key for key, _ in walk_keys()}
    assert len(preset_names()) == 120
    for name in preset_names():
        preset = load_preset(name)
        assert preset.settings.keys() <= known - set(MACHINE_KEYS), name
        assert preset.name == name and preset.description and preset.source


MINE = """\
# my experiment
train:
    epochs: 7      # seven is my number
    device: cpu    # no GPU here
    precision: fp32
    save_seconds: 9.0

    # comment above the rate
    learning_rate: 1.0e-4

# where my sentences are
data:
    source: files
    train_path: "my data/rows.csv"   # quoted
    columns: [a, b, c]
    max_rows: ~
export: {score_loss: 3.0, tolerance: 1e-4}
"""


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_a_preset_that_keeps_the_data_keeps_what_its_rows_are_made_from(params):
    own = {"data.view": "categories", "data.max_rows": 2, "data.columns": None}
    write_values(params, own | {"objective.energy_hinge.weight": 0.0}, where="params")
    apply_preset("simcse-unsup-bert-base", params, keep_data=True)
    settings = load_settings(params)
    assert (settings.data.view, settings.data.max_rows, settings.data.rows) == ("categories", 2, "pairs")
    told = refusal(apply_preset, "promcse-eh-bert-base", params, keep_data=True)
    assert "needs hard negatives, but data.view is 'categories'" in told


def test_use_keeps_comments_order_and_the_users_keys(params):
    changed = apply_preset("simcse-sup-bert-base", params, keep_data=True)
    lines = params.read_text(encoding="utf-8").splitlines()
    start = lines.index("# where my sentences are")
    assert [lines[2], lines[8]] == ["    epochs: 3      # seven is my number", "    learning_rate: 5.0e-5"]
    assert lines[3:8] == MINE.splitlines()[3:8]
    assert lines[start : start + 6] == MINE.splitlines()[10:16]
    assert "export: {score_loss: 3.0, tolerance: 1e-4}" in lines
    assert changed["train.epochs"] == (7, 3)
    assert not set(changed) & {*MACHINE_KEYS, "data.view"}


def test_what_describes_the_machine_stays(params):
    """Values of a large machine survive a preset, one that trains in another way included."""
    own = {
        "train.device": "cuda", "train.precision": "bf16", "train.workers": 4, "train.mini_batch_size": 32,
        "train.row_groups": 2, "train.save_seconds": 500.0, "evaluation.device": "cpu",
        "export.score_loss": 1.0, "promotion.dev_tolerance": 1.0, "tune.gpus_per_trial": 0.5,
    }  # fmt: skip
    assert set(MACHINE_KEYS) <= set(own)
    write_values(params, own)
    for name in ("d2cse-sup-bert-base", "consert-unsup-bert-base", "promcse-eh-minilm"):
        changed = apply_preset(name, params, keep_data=name == "promcse-eh-minilm")
        assert not set(changed) & set(own), name
    found = flatten(load_settings(params).model_dump())
    assert {key: found[key] for key in own} == own


def test_data_of_the_users_are_kept_where_that_is_asked_for(params):
    before = load_settings(params)
    assert apply_preset("promcse-eh-bert-base", params, keep_data=True)["train.epochs"] == (7, 10)
    assert load_settings(params).data == before.data
    changed = apply_preset("promcse-eh-bert-base", params)
    assert changed["data.source"] == ("files", "hub")
    assert changed["data.drop"] == (["duplicates", "evaluation_overlap"], [])
    assert load_settings(params).data == settings_of("promcse-eh-bert-base").data.model_copy(
        update={"train_path": "my data/rows.csv"}
    )


def test_a_view_that_the_users_columns_do_not_fit_is_refused(params):
    told = refusal(apply_preset, "promcse-unsup-bert-base", params, keep_data=True)
    assert "preset 'promcse-unsup-bert-base': data.columns: view 'sentences' needs 1" in told
    assert params.read_text(encoding="utf-8") == MINE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: {epoch: 1}\n", "train.epoch: unknown key"),
        ("train: [\n", "not valid YAML"),
        ("- train\n", "expected groups of settings"),
        ("train:\n", "'train' is a value, not a group"),
        ("train: &rows\n  batch_size: 4\nevaluation: *rows\n", "evaluation"),
        ("tune:\n  trials: &rows 4\ntrain:\n  batch_size: *rows\n", "cannot edit"),
    ],
)
def test_a_file_that_cannot_be_edited_stays_as_it_is(params, text, expected):
    params.write_text(text, encoding="utf-8")
    assert expected in refusal(apply_preset, "promcse-eh-bert-base", params)
    assert params.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "objective: {nt_xent: {weight: 2.0}, energy_hinge: {}}\n",
        "objective:\n  nt_xent:\n    temperature: 0.1\n  # the other term\nexport:\n  score_loss: 3.0",
        "train:\r\n  epochs: 3\r\ndata:\r\n  max_rows: 3\r\n",
        "train:\n  early_stop:   # never\n  seed: 7\n",
    ],
)
def test_any_layout_can_be_edited(params, text):
    params.write_bytes(text.encode())
    user = YAML(typ="safe", pure=True).load(text) or {}
    apply_preset("promcse-eh-bert-large", params)
    written = params.read_bytes().decode()
    assert load_settings(params).train == settings_of("promcse-eh-bert-large").train
    assert written.count("\r\n") in (0, written.count("\n"))
    assert [group for group in YAML(typ="safe", pure=True).load(written) if group in user] == list(user)
    assert all(comment in written for comment in ("# the other term", "# never", "# only a comment") if comment in text)


def test_every_key_can_be_set_in_a_file_that_dvc_rewrote():
    """``dvc exp run -S`` leaves null out and writes lists in blocks; comments stay where they are."""
    tree = parse_yaml_for_update(params_text(), "params.yaml")
    tree["prompt"]["length"], tree["evaluation"]["measures"] = 9, ["sts", "space"]
    tree["augment"]["repeat_words"] = 0.2  # -S +augment.repeat_words=0.2
    text = dumps_yaml(tree)
    before = YAML(typ="safe", pure=True).load(text)
    for group, keys in groupby((key for key, _ in walk_keys()), lambda key: key.split(".")[0]):
        expected, values = deepcopy(before), dict.fromkeys(keys, "another")
        for key, value in values.items():
            set_key(expected, key, value)
        written = _edit(text, values, expected, Path("params.yaml"))
        assert comments(written) == comments(text), group


def comments(text):
    return [line.partition("# ")[2] for line in text.splitlines() if "# " in line]


def test_a_preset_sets_keys_that_the_file_lacks_and_adds_no_defaults(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(params_text(), encoding="utf-8")
    names = ("d2cse-sup-bert-base-b-cls", "scpcse-minilm", "consert-unsup-bert-base", "mirror-unsup-bert-base")
    for name in names:
        apply_preset(name, path)
        assert load_settings(path).model_dump(exclude={"data"}) == settings_of(name).model_dump(exclude={"data"})
    added = flatten(YAML(typ="safe", pure=True).load(path)).keys() - flatten(parse_yaml_for_update(params_text(), ""))
    set_by_one = {key for name in names for key in load_preset(name).settings}
    assert {"augment.mask_span", "prompt.cls"} <= added <= set_by_one
    assert write_values(path, {"train.beta2": Settings().train.beta2}) == {}
    assert "beta2" not in path.read_text(encoding="utf-8")


def test_file_mode_and_links_survive(tmp_path):
    real = tmp_path / "shared.yaml"
    real.write_text("train: {epochs: 2}\n", encoding="utf-8")
    real.chmod(0o640)
    link = tmp_path / "params.yaml"
    link.symlink_to(real)
    apply_preset("promcse-eh-minilm", link)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert load_settings(real).train.batch_size == 256
    assert load_settings(real).data == Settings().data
