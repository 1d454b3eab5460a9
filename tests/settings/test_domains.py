"""``bank.domains``: the settings of one domain are the whole tree with its own folder and values on top."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from cse.settings import Settings, load_settings
from cse.settings.document import main as document
from cse.settings.domains import settings_of_domain
from cse.settings.load import check_settings
from cse.settings.presets import apply_preset
from tests.parts import refusal

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


def domains_of(path: Path) -> dict:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["bank"]["domains"]


def test_a_preset_keeps_the_domains(tmp_path):
    filled = tmp_path / "params.yaml"
    filled.write_text(FILLED, encoding="utf-8")
    before = domains_of(filled)
    for _ in range(2):
        apply_preset("promcse-unsup-bert-base", filled)
        assert domains_of(filled) == before
        text = filled.read_text(encoding="utf-8")
        assert FILLED.partition("bank:\n")[2] in text
        assert text.startswith("# mine\n")
    assert CliRunner().invoke(document, [str(filled)]).exit_code == 0
    assert domains_of(filled) == before | {"plain": {"data": "data/raw/plain", "set": {}}}
