"""A settings file, and what its domains make of it, is read and written with the same values; mistakes are one line."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cse.settings import Settings, load_settings
from cse.settings.document import COMMON, params_text, read_values, yaml_value
from cse.settings.document import main as document
from cse.settings.domains import settings_of_domain
from cse.settings.load import check_settings, flatten
from cse.settings.presets import apply_preset
from tests.parts import refusal

ROOT = Path(__file__).parents[2]


def parse(text):
    return YAML(typ="safe", pure=True).load(text)


def test_params_file_has_the_common_keys_with_their_defaults():
    path = ROOT / "params.yaml"
    assert load_settings(path) == Settings()
    assert path.read_text(encoding="utf-8") == params_text(), "run: python -m cse.settings.document"


TEXTS = st.sampled_from(["null", "on", "1e3", "a b", "", "#x", "b: c", "back\\slash"]) | st.text(
    st.characters(codec="utf-8", exclude_categories=["C"])
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


@settings(derandomize=True, deadline=None)
@given(VALUES | st.lists(VALUES, min_size=1))
def test_values_survive_yaml(value):
    read = parse(f"key: {yaml_value(value)}")["key"]
    assert read == value
    assert type(read) is type(value)


def test_rewriting_a_settings_file_keeps_its_values_and_adds_what_it_lacks(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("train: {epochs: 3}\naugment: {repeat_words: 0.2, mask_span: 0}\n", encoding="utf-8")
    before = load_settings(path)
    path.write_text(params_text(before), encoding="utf-8")
    assert load_settings(path) == before
    assert set(flatten(parse(path.read_text(encoding="utf-8")))) >= {*COMMON, "augment.repeat_words"}
    assert "mask_span" not in path.read_text(encoding="utf-8")  # its default


def complaint(folder, text):
    """Load a text as ``params.yaml`` and return the error's only line."""
    path = folder / "params.yaml"
    path.write_text(text, encoding="utf-8")
    message = refusal(load_settings, path)
    assert str(path) in message and len(message) < 400
    return message


def test_a_file_lies_over_the_defaults_and_overrides_over_the_file(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("")
    assert load_settings(path) == Settings()
    path.write_text("train: {epochs: 2, batch_size: &n 16}\ntune: {trials: *n}\ntemplate: {}\n")
    settings = load_settings(path, {"train.epochs": 5, "objective.energy_hinge.margin": 0.1})
    assert (settings.train.epochs, settings.train.batch_size, settings.tune.trials) == (5, 16, 16)
    assert settings.objective.energy_hinge.margin == 0.1


NO_HINGE = "objective: {energy_hinge: {weight: 0.0}"


@pytest.mark.parametrize(("text", "expected"), [
    ("trian: {epochs: 2}", "trian: unknown key; did you mean 'train'?"),
    ("objective: {energy_hinge: {margn: 0.2}}", "did you mean 'objective.energy_hinge.margin'?"),
    ("pooler: {kind: cnn, kind_in_loss: mean}", "pooler.kind_in_loss: the loss must use 'cnn' too"),
    ("template: {text: 'so {sentence} is {mask}'}", "pooler.kind: 'mask' and a template.text with {mask} require"),
    ("template: {text: 'so {sentence} is'}", "pooler.kind: a template.text without {mask} is read at the last"),
    ("template: {second: '{sentence} {mask}'}", "template.second: needs a template; give template.text"),
    ("template: {text: 'so'}", "template.text: needs {sentence} once and {mask} at most once, found 'so'"),
    ("template: {text: '{mask} {sentence}'}", "template.text: {mask} must come after {sentence}, found"),
    ("template: {text: '{sentence}', second: '{sentence} {mask}'}", "template.second: both templates need {mask}"),
    ("template: {text: '{sentence} is', denoise: always}", "template.denoise: needs a template with {mask}; give"),
    ("augment: {dropout: false, attention_dropout: 0.3}", "augment.attention_dropout: has no effect without"),
    ("train: {epochs: 0}", "train.epochs: input should be greater than or equal to 1, found 0"),
    ("train: {learning_rate: .nan}", "train.learning_rate: "),
    ("data: {score_range: [5, 0]}", "data.score_range: give two numbers"),
    ("data: {columns: [a, b]}", "data.columns: view 'triplets' needs 3 column names, 2 given"),
    ("data: {columns: [a, b, a]}", "data.columns: name each column only once, found a, b, a"),
    ("data: {source: files, view: labelled, hold_out: 0.1}", "hold_out: view 'labelled' has no pairs or labels of"),
    ("data: {encoding: utf-99}", "data.encoding: 'utf-99' is not an encoding"),
    ("train: {seed: 4294967296}", "train.seed: whole numbers go up to 4294967295, found 4294967296"),
    ("data: {train_path: ''}", "data.train_path: is blank; give a value"),
    ('data: {train_path: "a\\0b"}', r"data.train_path: contains a control character; remove it, found 'a\x00b'"),
    ("data: {columns: " + "x" * 9999 + "}", "x" * 90 + "..."),
    ("1: 2", "1: keys should be strings"),
    ("prompt: {kind: none, length: 0}", "prompt.kind: 'none' leaves nothing to train"),
    ("prompt: {length: 0}", "prompt.length: a prompt needs at least 1 vector"),
    ("data: {view: pairs}", "objective.energy_hinge.weight: needs hard negatives, but data.view is 'pairs'"),
    (f"data: {{view: sentences}}\n{NO_HINGE}, nt_xent: {{hard_negative_weight: 1.0}}}}", "has no hard negatives"),
    ("objective: {energy_hinge: {weight: 0.0}, nt_xent: {weight: 0.0}}", "objective.nt_xent.weight: every term"),
    (f"data: {{view: pairs}}\n{NO_HINGE}, label_proxies: {{weight: 1.0}}}}", "label_proxies.weight: needs "),
    ("data: {source: files, view: categories, more: [{name: a, path: b.csv, view: sentences}]}\n"
     f"{NO_HINGE}, nt_xent: {{weight: 0.0}}, label_proxies: {{weight: 1.0}}}}", "data.more.a.terms: every term has we"),
    (f"train: {{early_stop: 2}}\n{NO_HINGE}, nt_xent: {{weight: 0.0}}, masked_lm: {{weight: 1.0}}}}",
     "train.early_stop: objective.masked_lm compares no sentences, so the dev score cannot stop this training"),
    ("post: {kind: query_map}", "post.kind: query_map maps queries alone; set prompt.side: query"),
    ("data: {view: pairs}\nmine: {neighbours: 1}", "mine.neighbours: pairs are made of sentences"),
    ("train: {distinct_batches: true}\nobjective: {contrastive_tension: {weight: 1.0}}", "from whole batches"),
    # hostile
    ("a: " + "[" * 3000 + "]" * 3000, "not valid YAML: maximum recursion depth exceeded"),
    ("train: &t {epochs: *t}", "train.epochs: input should be a valid integer"),
    ("a: \0b", "unacceptable character #x0000"),
    ("data: {train_path: 2024-13-45}", "not valid YAML: month must be in 1..12"),
    ("train: {seed: " + "9" * 5001 + "}", "not valid YAML: Exceeds the limit"),
    ("train: {seed: 0x" + "f" * 5001 + "}", "train.seed: whole numbers go up to 4294967295, found a number of"),
    ("train: {seed: !!int ''}", "not valid YAML"),
    ("# " + "x" * (1 << 18), "262,146 bytes, a settings file has at most 262,144"),
], ids=lambda value: value[:40])  # fmt: skip
def test_a_wrong_value_or_combination_names_its_key(tmp_path, text, expected):
    assert expected in complaint(tmp_path, text)


def test_a_pipe_and_a_folder_are_no_settings_files_nor_is_another_encoding(tmp_path):
    assert "no such file" in refusal(load_settings, tmp_path / "params.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"# caf\xe9\n")
    assert "not UTF-8 at byte 5" in refusal(load_settings, tmp_path / "latin.yaml")
    os.mkfifo(tmp_path / "params.yaml")
    for path in (tmp_path / "params.yaml", tmp_path):
        for read in (load_settings, read_values):
            assert "not a regular file" in refusal(read, path)


# ---- domains of a bank: the whole tree with a folder and values of their own on top ---------------------------------

FILLED = """\
# mine
train: {epochs: 2}
bank:
  domains:
    tickets:
      data: data/raw/tickets # from the help desk
      set: {data.view: pairs, objective.energy_hinge.weight: 0.0, train.learning_rate: 1.0e-5}
    "no": {data: 'data/raw/a b', set: {data.columns: [one, "two: 2"], prompt.dropout: null}}
    plain: {data: data/raw/plain}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with the rows of a domain."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows/train").mkdir(parents=True)
    return tmp_path


def tree_with(values: dict | None = None, **groups) -> Settings:
    """The whole tree with one domain that sets some values."""
    return check_settings(groups | {"bank": {"domains": {"tickets": {"data": "rows", "set": values or {}}}}}, "here")


def test_own_values_lie_over_the_shared_ones(folder):
    shared = tree_with({"train.epochs": 7, "objective.nt_xent.temperature": 0.1}, train={"epochs": 2, "batch_size": 16})
    own = settings_of_domain(shared, "tickets")
    assert (own.train.epochs, own.train.batch_size) == (7, 16)
    assert (own.objective.nt_xent.temperature, own.objective.energy_hinge) == (0.1, shared.objective.energy_hinge)
    assert shared.train.epochs == 2
    changed = {"data", "train", "objective"}
    assert own.model_dump(exclude=changed) == shared.model_dump(exclude=changed)


def test_an_own_view_makes_another_loss_possible(folder):
    """The shared tree need not fit the rows of any domain; each domain's has to."""
    (folder / "params.yaml").write_text(
        "objective: {energy_hinge: {weight: 0.0}, nli_softmax: {weight: 1.0}}\n"
        "bank: {domains: {a1: {data: rows, set: {data.view: labelled, objective.nt_xent.weight: 0.0}}, "
        "a2: {data: rows}}}\n"
    )
    whole = load_settings(any_view=True)
    assert settings_of_domain(whole, "a1").data.view == "labelled"
    told = refusal(settings_of_domain, whole, "a2")
    assert told.startswith("bank.domains.a2.set: objective.nli_softmax.weight: needs")


def test_parts_of_the_folder_replace_shared_ones_where_they_exist(folder):
    shared = tree_with(data={"source": "sample", "dev_path": "shared-dev"})
    data = settings_of_domain(shared, "tickets").data
    assert (data.source, data.train_path, data.dev_path) == ("files", "rows/train", "shared-dev")
    assert data.evaluation_path == Settings().data.evaluation_path
    for part in ("dev", "evaluation", "cxc"):
        (folder / "rows" / part).mkdir()
    data = settings_of_domain(shared, "tickets").data
    assert (data.dev_path, data.evaluation_path, data.cxc_path) == ("rows/dev", "rows/evaluation", "rows/cxc")
    assert settings_of_domain(tree_with({"data.dev_path": "elsewhere"}), "tickets").data.dev_path == "elsewhere"


def test_names_folders_and_keys_that_cannot_be(folder):
    for name in ("Ab", "ab-", "auto", "a" * 65):
        said = refusal(check_settings, {"bank": {"domains": {name: {"data": "rows"}}}}, "here")
        assert ": use 2 to 64 lower-case letters" in said
    for key in ("backbone.name", "bank.at_once", "train"):
        assert f"tickets.set.{key}: a domain sets keys of data, " in refusal(tree_with, {key: "x"})
    assert "no domain 'ticket'; did you mean 'tickets'?" in refusal(settings_of_domain, tree_with(), "ticket")
    (folder / "rows/train").rmdir()
    (folder / "rows").rmdir()
    said = refusal(settings_of_domain, tree_with(), "tickets")
    assert said == "bank.domains.tickets.data: rows is no folder; give one with a folder `train` in it"


@pytest.mark.parametrize(("groups", "reason"), [
    ({"train": {"parameters": "full"}}, "train.parameters: full; domains share a frozen backbone"),
    ({"prompt": {"kind": "input"}}, "prompt.kind: input, which has no keys and values of its own"),
    ({"pooler": {"kind": "mask"}, "template": {"text": "{sentence} is {mask} ."}}, "template.text: a template"),
    ({"post": {"kind": "flow"}}, "post.kind: flow"),
    ({"pooler": {"kind": "mean_top2"}}, "pooler.kind: mean_top2; use cls, mean, last"),
    ({"pooler": {"mlp": "always", "projector": "mlm_transform"}}, "pooler.projector: mlm_transform; use "),
])  # fmt: skip
def test_what_a_bank_cannot_hold_is_refused_before_training(folder, groups, reason):
    message = refusal(settings_of_domain, tree_with(**{"pooler": {"kind": "mean"}} | groups), "tickets")
    assert message.startswith(f"bank.domains.tickets: a bank cannot hold {reason}")


def test_a_preset_keeps_the_domains(tmp_path):
    filled = tmp_path / "params.yaml"
    filled.write_text(FILLED, encoding="utf-8")

    def domains():
        return parse(filled.read_text(encoding="utf-8"))["bank"]["domains"]

    before = domains()
    for _ in range(2):
        apply_preset("promcse-unsup-bert-base", filled)
        assert domains() == before
        text = filled.read_text(encoding="utf-8")
        assert FILLED.partition("bank:\n")[2] in text
        assert text.startswith("# mine\n")
    assert CliRunner().invoke(document, [str(filled)]).exit_code == 0
    assert domains() == before | {"plain": {"data": "data/raw/plain", "set": {}}}
