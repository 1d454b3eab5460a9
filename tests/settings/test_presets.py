"""Presets are whole and those of the papers, and writing one into ``params.yaml`` leaves the rest of it alone.

tests/systems/test_every_preset.py holds what their parts compute against recorded losses, with small batches and rates.
"""

from hashlib import sha256
from importlib.resources import files

import pytest
from dvc.utils.serialize import dumps_yaml, parse_yaml_for_update
from ruamel.yaml import YAML

from cse.settings import Settings, load_settings
from cse.settings.document import params_text, write_values
from cse.settings.load import flatten, settings_with, walk_keys
from cse.settings.presets import (
    HYPERPARAMETER,
    MACHINE_KEYS,
    apply_preset,
    coverage,
    load_preset,
    preset_names,
    records,
    rows,
)  # fmt: skip
from tests.parts import refusal


def settings_of(name):
    return settings_with(Settings(), load_preset(name).settings)


# All that decides which rows a hub's file gives.
AS_PUBLISHED = {
    "data.columns": None, "data.encoding": "utf-8",
    "data.max_rows": None, "data.max_words": 1000, "data.drop": [],
}  # fmt: skip
# Trained on sentences of the STS tasks, which no hub has as one file: without it, `prepare` says what is missing.
ON_STS = {"consert-unsup-bert-base", "consert-sup-bert-base", "mirror-unsup-bert-base", "sgopt-unsup-bert-base"}


def test_a_paper_brings_its_rows_and_this_projects_own_systems_take_the_users():
    known = {key for key, _ in walk_keys()}
    assert len(preset_names()) == 120
    for name in preset_names():
        preset = load_preset(name)
        assert preset.settings.keys() <= known - set(MACHINE_KEYS), name
        assert preset.name == name and preset.description and preset.source
        data = {key: value for key, value in preset.settings.items() if key.startswith("data.")}
        fits = {key: data.pop(key) for key in ("data.view", "data.hub_id", "data.hub_file")}
        assert None not in fits.values(), name
        if "minilm" in name:
            assert data == {} and not preset.rows, name
        else:
            assert data == {"data.source": "files" if name in ON_STS else "hub"} | AS_PUBLISHED, name


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


def test_use_keeps_comments_order_and_the_users_keys(params):
    changed = apply_preset("simcse-sup-bert-base", params, keep_data=True)
    expected = MINE.replace("epochs: 7", "epochs: 3").replace("1.0e-4", "5.0e-5").split("\n")
    lines = params.read_text(encoding="utf-8").split("\n")
    assert [line for line in lines if line and line in expected] == [line for line in expected if line]
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
    for name in ("d2cse-sup-bert-base", "consert-unsup-bert-base"):
        assert not set(apply_preset(name, params)) & set(own), name
    found = flatten(load_settings(params).model_dump())
    assert {key: found[key] for key in own} == own


def test_data_of_the_users_are_kept_where_that_is_asked_for_and_fits(params):
    told = refusal(apply_preset, "promcse-unsup-bert-base", params, keep_data=True)
    assert "preset 'promcse-unsup-bert-base': data.columns: view 'sentences' needs 1" in told
    assert params.read_text(encoding="utf-8") == MINE
    before = load_settings(params)
    assert apply_preset("promcse-eh-bert-base", params, keep_data=True)["train.epochs"] == (7, 10)
    assert load_settings(params).data == before.data
    changed = apply_preset("promcse-eh-bert-base", params)
    assert changed["data.source"] == ("files", "hub")
    published = settings_of("promcse-eh-bert-base").data
    assert load_settings(params).data == published.model_copy(update={"train_path": "my data/rows.csv"})
    # rows that are made of categories stay
    own = {"data.view": "categories", "data.max_rows": 2, "data.columns": None}
    write_values(params, own | {"objective.energy_hinge.weight": 0.0}, where="params")
    apply_preset("simcse-unsup-bert-base", params, keep_data=True)
    settings = load_settings(params)
    assert (settings.data.view, settings.data.max_rows, settings.data.rows) == ("categories", 2, "pairs")
    told = refusal(apply_preset, "promcse-eh-bert-base", params, keep_data=True)
    assert "needs hard negatives, but data.view is 'categories'" in told


@pytest.mark.parametrize(("text", "expected"), [
    ("- train\n", "expected groups of settings"), ("train:\n", "'train' is a value, not a group"),
    ("train: &rows\n  batch_size: 4\nevaluation: *rows\n", "evaluation"),
    ("tune:\n  trials: &rows 4\ntrain:\n  batch_size: *rows\n", "cannot edit"),
])  # fmt: skip
def test_a_file_that_cannot_be_edited_stays_as_it_is(params, text, expected):
    params.write_text(text, encoding="utf-8")
    assert expected in refusal(apply_preset, "promcse-eh-bert-base", params)
    assert params.read_text(encoding="utf-8") == text


def comments(text):
    return {line.partition("# ")[2] for line in text.splitlines() if "# " in line}


def rewritten():
    """The file behind ``dvc exp run -S``, which leaves null out and writes lists in blocks."""
    tree = parse_yaml_for_update(params_text(), "params.yaml")
    tree["prompt"]["length"], tree["evaluation"]["measures"] = 9, ["sts", "space"]
    tree["augment"]["repeat_words"] = 0.2  # -S +augment.repeat_words=0.2
    return dumps_yaml(tree)


@pytest.mark.parametrize("text", [
    rewritten(), "# only a comment\n", "objective: {nt_xent: {weight: 2.0}, energy_hinge: {}}\n",
    "objective:\n  nt_xent:\n    temperature: 0.1\n  # the other term\nexport:\n  score_loss: 3.0",
    "train:\r\n  epochs: 3\r\ndata:\r\n  max_rows: 3\r\n", "train:\n  early_stop:   # never\n  seed: 7\n",
])  # fmt: skip
def test_any_layout_can_be_edited(params, text):
    params.write_bytes(text.encode())
    user = YAML(typ="safe", pure=True).load(text) or {}
    apply_preset("promcse-eh-bert-large", params)
    written = params.read_bytes().decode()
    assert load_settings(params).train == settings_of("promcse-eh-bert-large").train
    assert written.count("\r\n") in (0, written.count("\n"))
    assert [group for group in YAML(typ="safe", pure=True).load(written) if group in user] == list(user)
    assert comments(text) <= comments(written)


def test_a_preset_sets_keys_that_the_file_lacks_and_adds_no_defaults(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(params_text(), encoding="utf-8")
    names = ("d2cse-sup-bert-base-b-cls", "mirror-unsup-bert-base")
    for name in names:
        apply_preset(name, path)
        assert load_settings(path).model_dump(exclude={"data"}) == settings_of(name).model_dump(exclude={"data"})
    added = flatten(YAML(typ="safe", pure=True).load(path)).keys() - flatten(parse_yaml_for_update(params_text(), ""))
    set_by_one = {key for name in names for key in load_preset(name).settings}
    assert {"augment.mask_span", "prompt.cls"} <= added <= set_by_one
    assert write_values(path, {"train.beta2": Settings().train.beta2}) == {}
    assert "beta2" not in path.read_text(encoding="utf-8")


def test_file_mode_and_links_survive(tmp_path):
    real, link = tmp_path / "shared.yaml", tmp_path / "params.yaml"
    real.write_text("train: {epochs: 2}\n", encoding="utf-8")
    real.chmod(0o640)
    link.symlink_to(real)
    apply_preset("promcse-eh-minilm", link)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert (load_settings(real).train.batch_size, load_settings(real).data) == (256, Settings().data)


# of the figures as they were read twice from the papers
FIGURES = "e0ecff7093d3a6f3bd485d07dff9b0e4563f24099836dce0e9bcc92775d6c274"

KEYS = {
    "batch_size": "train.batch_size", "learning_rate": "train.learning_rate", "epochs": "train.epochs",
    "prompt_length": "prompt.length", "masking_ratio": "objective.replaced_tokens.mask_share",
    "lambda": "objective.replaced_tokens.weight", "cls_prompt": "prompt.cls",
    "multi_task_mlm": "objective.masked_lm.weight",
}  # fmt: skip


def test_figures_are_those_of_the_papers_and_every_row_of_them_has_a_preset_or_a_reason():
    assert sha256(files("cse.settings").joinpath("published.csv").read_bytes()).hexdigest() == FIGURES
    assert sum(len(row.scores) for row in rows()) == len(records()) == 1007
    covered = coverage()
    assert len(covered) == len(rows()) == 189
    for row, presets, reason in covered:
        assert bool(presets) != bool(reason), f"{row.selector}: {presets or 'no preset'}, {reason or 'no reason'}"
        assert len(set(presets)) == len(presets), "a preset names a row twice"
        for name in presets:  # such as bert-base, roberta-large, glove
            backbone, size = load_preset(name).settings["backbone.name"].lower(), row.selector.backbone.lower()
            assert size in backbone and ("roberta" in size) == ("roberta" in backbone), name
    assert sum(bool(presets) for _, presets, _ in covered) == 182


def test_hyperparameters_are_the_printed_ones():
    """PromCSE table 6: 4 presets of 3; DCPCSE tables 3 and 4: 8 presets of 5; D2CSE table 7: 5 of 7."""
    compared = set()
    for row, presets, _ in coverage():
        for score in (score for score in row.scores if score.metric == HYPERPARAMETER):
            for name in presets:
                ours = flatten(settings_of(name).model_dump())[KEYS[score.dataset]]
                printed = ours > 0 if score.dataset == "multi_task_mlm" else ours
                assert printed == score.value, f"{name} {score.dataset}"
                compared.add((name, score.dataset))
    assert len(compared) >= 4 * 3 + 8 * 5 + 5 * 7
