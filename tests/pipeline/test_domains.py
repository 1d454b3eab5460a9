"""Stage ``domain`` with DVC: each domain runs when something of its own changed, and gives what the pipeline gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.train_bank import changed_domains
from tests.pipeline.workspace import Workspace, ran, tiny_clone, write_pairs, write_triplets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

OWN = {"train.epochs": 2, "train.learning_rate": 0.3, "prompt.length": 3}  # of domain tickets
DOMAINS: dict[str, Any] = {
    "mail": {"data": "data/raw/mail"},
    "tickets": {"data": "data/raw/tickets", "set": OWN},
}
BOTH = ["domain@mail", "domain@tickets"]


def write_domain(workspace: Workspace, name: str, seed: int, rows: int = 64) -> None:
    for part in ("train", "dev"):
        (workspace.folder / f"data/raw/{name}/{part}").mkdir(parents=True, exist_ok=True)
    write_triplets(workspace.folder / f"data/raw/{name}/train/rows.csv", rows, seed)
    write_pairs(workspace.folder / f"data/raw/{name}/dev/dev.csv", 24, seed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Workspace:
    """A clone after ``dvc repro domain``; tests copy it before they change anything."""
    workspace = tiny_clone(tmp_path_factory.mktemp("domains") / "clone", bank__domains=DOMAINS)
    for seed, name in enumerate(DOMAINS, start=5):
        write_domain(workspace, name, seed)
    workspace.commit()
    assert sorted(ran(workspace.dvc("repro", "domain"))) == BOTH
    workspace.commit()
    return workspace


@pytest.fixture
def copy(finished, tmp_path) -> Workspace:
    return finished.copy(tmp_path / "clone")


def changed(workspace: Workspace) -> list[str]:
    """The domains that DVC would run, as the flow train-bank asks for them; this folder is not the clone's."""
    tree = YAML(typ="safe", pure=True).load(workspace.folder / "params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_SITE_CACHE_DIR", workspace.environment["DVC_SITE_CACHE_DIR"])
        return [f"domain@{name}" for name in changed_domains(workspace.folder, sorted(tree["bank"]["domains"]))]


def weights(workspace: Workspace, checkpoint: str) -> bytes:
    (found,) = [data for name, data in workspace.bytes_of(checkpoint).items() if name.endswith(".safetensors")]
    return found


def test_only_the_domain_whose_data_changed_runs(copy):
    tickets, mail = (copy.bytes_of(f"data/domains/{name}") for name in ("tickets", "mail"))
    assert ran(copy.dvc("repro", "domain")) == []
    write_domain(copy, "mail", seed=9, rows=40)
    assert changed(copy) == ["domain@mail"]
    copy.set({"tune.trials": 3, "bank.at_once": 1, "promotion.dev_tolerance": 2.0, "export.score_loss": 1.0})
    output = copy.dvc("repro", "domain")
    assert ran(output) == ["domain@mail"]
    assert "Stage 'domain@tickets' didn't change, skipping" in output
    assert copy.bytes_of("data/domains/tickets") == tickets
    assert copy.bytes_of("data/domains/mail") != mail
    assert json.loads((copy.folder / "data/domains/mail/prepare.json").read_text())["rows"] == 40
    assert json.loads(copy.dvc("status", "--json", "domain")) == {}
    assert copy.leftovers() == []


def test_what_makes_a_domain_stale(copy):
    """DVC alone decides; nothing is trained here."""
    original = (copy.folder / "params.yaml").read_text()
    for values, expected in (
        ({"tune.trials": 3, "bank.at_once": 1}, []),
        ({"promotion.dev_tolerance": 2.0, "export.tolerance": 1e-4}, []),
        ({"bank.domains": DOMAINS | {"tickets": DOMAINS["tickets"] | {"set": OWN | {"train.epochs": 3}}}}, BOTH[1:]),
        ({"bank.domains": DOMAINS | {"calls": {"data": "data/raw/mail"}}}, ["domain@calls"]),
        ({"bank.domains": {"mail": DOMAINS["mail"]}}, []),
        ({"train.batch_size": 4}, BOTH),
        ({"evaluation.measures": ["sts"]}, BOTH),
    ):
        copy.set(values)
        assert changed(copy) == expected, values
        (copy.folder / "params.yaml").write_text(original)
    for path, expected in (
        ("data/raw/tickets/dev/dev.csv", BOTH[1:]),
        ("data/raw/evaluation/evaluation.csv", BOTH),
        ("data/raw/train/rows.csv", []),  # of the pipeline's own model
        ("cse/export/parity.py", []),
        ("cse/stages/bank.py", []),
        ("cse/model/prompts.py", BOTH),
    ):
        before = (copy.folder / path).read_bytes()
        (copy.folder / path).write_bytes(before + b"\n")
        assert changed(copy) == expected, path
        (copy.folder / path).write_bytes(before)
    assert changed(copy) == []


def test_what_a_domain_leaves_can_be_committed(finished):
    tracked = finished.run("git", "ls-files").splitlines()
    assert {"dvc.lock", "data/metrics/domains/mail.json", "data/metrics/domains/tickets.json"} <= set(tracked)
    assert [name for name in tracked if name.startswith("data/domains/")] == []
    assert finished.run("git", "status", "--short") == ""
    scores_file = "data/metrics/domains/mail.json"
    scores = json.loads(finished.dvc("metrics", "show", "--json", scores_file))[""]["data"][scores_file]["data"]
    assert isinstance(scores["dev_spearman"], float)
    assert scores.keys() == {"dev_spearman", "start_dev_spearman", "trained", "backbone"}


def test_a_domain_equals_the_pipeline_with_the_same_settings(copy):
    copy.set({f"data.{part}_path": f"data/raw/tickets/{part}" for part in ("train", "dev")} | OWN)
    for command in ("prepare", "train"):
        copy.run("cse", command)
    assert json.loads((copy.folder / "data/metrics/train.json").read_text())["best_step"] > 0, "it has to learn"
    assert weights(copy, "data/checkpoint") == weights(copy, "data/domains/tickets/checkpoint")
    assert weights(copy, "data/checkpoint") != weights(copy, "data/domains/mail/checkpoint")
    for mine, of_domain in (("prepared", "prepared"), ("plots/train", "plots/train")):
        expected = copy.bytes_of(f"data/{mine}")
        found = copy.bytes_of(f"data/domains/tickets/{of_domain}")
        assert {name.removeprefix("data/domains/tickets/"): data for name, data in found.items()} == {
            name.removeprefix("data/"): data for name, data in expected.items()
        }
