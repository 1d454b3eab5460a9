"""Presets hold the published values, and writing one into ``params.yaml`` leaves the rest of it alone."""

import dataclasses

import pytest
from ruamel.yaml import YAML

from cse.errors import CseError
from cse.settings import Settings, check_settings, load_settings
from cse.settings.document import default_params_text
from cse.settings.load import set_key, walk_keys
from cse.settings.presets import apply_preset, load_preset, preset_names

BERT_BASE, BERT_LARGE = "google-bert/bert-base-uncased", "google-bert/bert-large-uncased"
ROBERTA_BASE, ROBERTA_LARGE = "FacebookAI/roberta-base", "FacebookAI/roberta-large"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"

# backbone, rows per batch, peak learning rate, prompt vectors, passes
PUBLISHED = {
    "promcse-unsup-bert-base": (BERT_BASE, 256, 3e-2, 16, 1),
    "promcse-unsup-bert-large": (BERT_LARGE, 256, 3e-2, 10, 1),
    "promcse-unsup-roberta-base": (ROBERTA_BASE, 64, 3e-2, 14, 1),
    "promcse-unsup-roberta-large": (ROBERTA_LARGE, 64, 1e-2, 10, 1),
    "promcse-sup-bert-base": (BERT_BASE, 256, 1e-2, 12, 10),
    "promcse-sup-bert-base-dcpcse": (BERT_BASE, 256, 5e-3, 12, 10),
    "promcse-sup-bert-large": (BERT_LARGE, 256, 5e-3, 12, 10),
    "promcse-sup-roberta-base": (ROBERTA_BASE, 512, 1e-2, 10, 10),
    "promcse-sup-roberta-base-dcpcse": (ROBERTA_BASE, 256, 1e-2, 10, 10),
    "promcse-sup-roberta-large": (ROBERTA_LARGE, 512, 5e-3, 10, 10),
    "promcse-sup-roberta-large-dcpcse": (ROBERTA_LARGE, 256, 5e-3, 10, 10),
    "promcse-sup-roberta-large-old-script": (ROBERTA_LARGE, 512, 5e-3, 10, 5),
    "promcse-eh-bert-base": (BERT_BASE, 256, 1e-2, 12, 10),
    "promcse-eh-bert-large": (BERT_LARGE, 256, 5e-3, 12, 10),
    "promcse-eh-roberta-base": (ROBERTA_BASE, 512, 1e-2, 10, 10),
    "promcse-eh-roberta-large": (ROBERTA_LARGE, 512, 5e-3, 10, 10),
    "simcse-unsup-bert-base": (BERT_BASE, 64, 3e-5, 0, 1),
    "simcse-unsup-bert-large": (BERT_LARGE, 64, 1e-5, 0, 1),
    "simcse-unsup-roberta-base": (ROBERTA_BASE, 512, 1e-5, 0, 1),
    "simcse-unsup-roberta-large": (ROBERTA_LARGE, 512, 3e-5, 0, 1),
    "simcse-sup-bert-base": (BERT_BASE, 512, 5e-5, 0, 3),
    "simcse-sup-bert-large": (BERT_LARGE, 512, 1e-5, 0, 3),
    "simcse-sup-roberta-base": (ROBERTA_BASE, 512, 5e-5, 0, 3),
    "simcse-sup-roberta-large": (ROBERTA_LARGE, 512, 1e-5, 0, 3),
    "simcse-eh-bert-base": (BERT_BASE, 512, 5e-5, 0, 3),
    "simcse-eh-bert-large": (BERT_LARGE, 512, 1e-5, 0, 3),
    "simcse-eh-roberta-base": (ROBERTA_BASE, 512, 5e-5, 0, 3),
    "simcse-eh-roberta-large": (ROBERTA_LARGE, 512, 1e-5, 0, 3),
    # the project's own, for the default backbone
    "promcse-eh-minilm": (MINILM, 256, 3e-2, 12, 1),
    "promcse-unsup-minilm": (MINILM, 256, 1e-2, 12, 1),
    "simcse-sup-minilm": (MINILM, 256, 5e-5, 0, 1),
}


def settings_of(name):
    tree = {}
    for key, value in load_preset(name).settings.items():
        set_key(tree, key, value)
    return check_settings(tree, where=name)


def test_every_preset_is_in_the_table():
    assert preset_names() == list(PUBLISHED)
    assert len(PUBLISHED) == 31


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values(name):
    backbone, batch_size, learning_rate, length, epochs = PUBLISHED[name]
    system, supervision, model = name.split("-", 2)
    settings = settings_of(name)

    assert settings.backbone.name == backbone
    train = settings.train
    assert (train.batch_size, train.learning_rate, train.epochs) == (batch_size, learning_rate, epochs)
    assert (train.max_length, train.eval_every, train.seed, train.early_stop) == (32, 125, 42, None)
    assert (train.warmup_share, train.weight_decay, train.clip_norm) == (0.0, 0.0, 1.0)

    prompt = settings.prompt
    assert prompt.length == length
    assert prompt.kind == {"promcse": "key_value", "simcse": "none"}[system]
    assert train.parameters == {"promcse": "prompts", "simcse": "full"}[system]
    # MiniLM was made for sentences: its tokens keep the positions that it knows, which scores higher
    shifted = not (system == "promcse" and model == "minilm")
    assert (prompt.dropout, prompt.position_shift, prompt.init_std) == (None, shifted, 0.02)

    pooler, mlp = settings.pooler, {"unsup": "train_only", "sup": "always", "eh": "always"}[supervision]
    assert (pooler.kind, pooler.mlp) == ((None, "none") if model == "minilm" else ("cls", mlp))

    nt_xent, hinge = settings.objective.nt_xent, settings.objective.energy_hinge
    assert (nt_xent.weight, nt_xent.temperature, nt_xent.hard_negative_weight) == (1.0, 0.05, 0.0)
    assert hinge.weight == (10.0 if supervision == "eh" else 0.0)
    assert hinge.margin == 0.2

    assert settings.data.view == ("sentences" if supervision == "unsup" else "triplets")
    assert settings.data.hub_file == ("wiki1m_for_simcse.txt" if supervision == "unsup" else "nli_for_simcse.csv")


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_name_known_keys_and_leave_the_users_data_alone(name):
    keys = set(load_preset(name).settings)
    assert keys <= {key for key, _ in walk_keys()}
    assert {key for key in keys if key.startswith("data.")} == {"data.view", "data.hub_file"}
    assert not keys & {"train.device", "train.precision"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_say_what_they_are(name):
    preset = load_preset(name)
    assert preset.name == name
    assert preset.description
    assert preset.source
    trained_with_mlm = name in ("promcse-unsup-roberta-base", "promcse-unsup-roberta-large")
    assert ("the preset trains without it" in preset.notes) == trained_with_mlm


def test_presets_cannot_be_changed():
    preset = load_preset("simcse-sup-minilm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset.name = "other"
    with pytest.raises(TypeError):
        preset.settings["train.epochs"] = 2


def test_unknown_name_offers_the_nearest():
    with pytest.raises(CseError, match="did you mean 'promcse-sup-bert-base'") as caught:
        load_preset("promcse-sup-bertbase")
    assert "\n" not in str(caught.value)


# ---- apply_preset -------------------------------------------------------------------------------------------------

MINE = """\
# my experiment
train:
    epochs: 7      # seven is my number
    device: cpu    # no GPU here
    precision: fp32
    save_every: 9

    # comment above the rate
    learning_rate: 1.0e-4

# where my sentences are
data:
    source: files
    train_path: "my data/rows.csv"   # quoted
    columns: [a, b, c]
    max_rows: ~
export: {sentences: 3, tolerance: 1e-4}
"""


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_use_keeps_comments_order_and_the_users_keys(params):
    changed = apply_preset("simcse-sup-bert-base", params)
    lines = params.read_text(encoding="utf-8").splitlines()
    start = lines.index("# where my sentences are")
    assert lines[:9] == [
        "# my experiment",
        "train:",
        "    epochs: 3      # seven is my number",
        "    device: cpu    # no GPU here",
        "    precision: fp32",
        "    save_every: 25",
        "",
        "    # comment above the rate",
        "    learning_rate: 5.0e-5",
    ]
    assert lines[start : start + 6] == MINE.splitlines()[10:16]
    assert "export: {sentences: 3, tolerance: 1e-4}" in lines
    assert changed["train.epochs"] == (7, 3)
    assert changed["train.save_every"] == (9, 25)
    assert not set(changed) & {"train.device", "train.precision", "data.view"}


def test_use_gives_the_system_and_nothing_else(params):
    before = load_settings(params)
    apply_preset("promcse-sup-roberta-large", params)
    after, preset = load_settings(params), settings_of("promcse-sup-roberta-large")
    for group in ("backbone", "prompt", "pooler", "objective"):
        assert getattr(after, group) == getattr(preset, group)
    machine = {"device": "cpu", "precision": "fp32"}
    assert after.train == preset.train.model_copy(update=machine)
    assert after.data == before.data
    assert (after.evaluation, after.export) == (before.evaluation, before.export)


def test_one_system_after_another_leaves_no_trace(params):
    apply_preset("promcse-eh-bert-base", params)
    once = load_settings(params)
    for name in ("simcse-sup-roberta-large", "promcse-eh-minilm", "promcse-eh-bert-base"):
        apply_preset(name, params)
    assert load_settings(params) == once
    assert apply_preset("promcse-eh-bert-base", params) == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_without_a_file_a_complete_one_is_written(tmp_path, name):
    path = tmp_path / "params.yaml"
    apply_preset(name, path)
    assert load_settings(path) == settings_of(name)
    text = path.read_text(encoding="utf-8")
    assert [line.split(":")[0] for line in text.splitlines()] == [
        line.split(":")[0] for line in default_params_text().splitlines()
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_a_result_that_cannot_work_is_not_written(params):
    with pytest.raises(CseError, match=r"preset 'promcse-unsup-bert-base': data.columns: view 'sentences' needs 1"):
        apply_preset("promcse-unsup-bert-base", params)
    assert params.read_text(encoding="utf-8") == MINE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: {epoch: 1}\n", "train.epoch: unknown key"),
        ("train: [\n", "not valid YAML"),
        ("- train\n", "expected groups of settings"),
        ("train:\n", "'train' is a value, not a group"),
        ("train: &rows\n  batch_size: 4\nevaluation: *rows\n", "evaluation"),
    ],
)
def test_a_file_that_cannot_be_edited_stays_as_it_is(params, text, expected):
    params.write_text(text, encoding="utf-8")
    with pytest.raises(CseError, match=expected) as caught:
        apply_preset("promcse-eh-bert-base", params)
    assert "\n" not in str(caught.value)
    assert params.read_text(encoding="utf-8") == text


def test_shared_anchors_are_refused_rather_than_changed(params):
    text = "evaluation:\n  batch_size: &rows 4\ntrain:\n  batch_size: *rows\n"
    params.write_text(text, encoding="utf-8")
    with pytest.raises(CseError, match="anchors"):
        apply_preset("promcse-eh-bert-base", params)
    assert params.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "train: {}\n",
        "train: {epochs: 2}\n",
        "objective: {nt_xent: {weight: 2.0}, energy_hinge: {}}\n",
        "objective:\n  nt_xent:\n    temperature: 0.1\n  # the other term\nexport:\n  sentences: 3",
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
