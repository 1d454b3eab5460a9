"""Flow ``train-bank`` end to end: what changed is trained, what passes the gate enters the bank as a version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.train_bank import changed_domains
from tests.flows.runs import run_script
from tests.pipeline.workspace import Workspace, tiny_clone, write_pairs, write_triplets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOMAINS = {
    "calls": {"data": "data/raw/calls"},
    "mail": {"data": "data/raw/mail", "set": {"prompt.length": 2}},
    "tickets": {"data": "data/raw/tickets", "set": {"train.learning_rate": 0.1}},
}
VERSIONS = [f"sentence-encoder-{name}@v1.0.0" for name in DOMAINS]

# Runs the flow three times on one temporary server: the first time; when a domain has left the bank, with a tolerance
# that none can keep; after the rows of one domain changed and those of another broke.
SCRIPT = """
import hashlib, json, subprocess
from pathlib import Path
from prefect.artifacts import Artifact
from dvc.repo import Repo
from cse.export.domains import remove_domain
from flows.server import quiet_server
from flows.train_bank import train_bank
from tests.flows.runs import run as run_flow
from tests.pipeline.workspace import Workspace, write_triplets

def run():
    one = run_flow(train_bank, 2)
    with Repo(".") as repo:
        stale = sorted(repo.status(targets=["domain"]))
    bank = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path("data/bank/domains").iterdir()}
    tags = subprocess.run(["git", "tag"], capture_output=True, text=True, check=True).stdout.split()
    return one | {"table": json.loads(Artifact.get("domains").data), "stale": stale, "bank": bank, "tags": tags}

with quiet_server():
    found = [run()]
    remove_domain(Path("data/bank"), "calls")
    Workspace(Path.cwd()).set({"export.tolerance": 1e-12})
    found.append(run())
    Workspace(Path.cwd()).set({"export.tolerance": 1e-5})
    write_triplets(Path("data/raw/tickets/train/rows.csv"), 48, 12)
    Path("data/raw/mail/train/rows.csv").write_text("text,label\\nthe cat sits,yes\\n")
    found.append(run())
"""


def write_domain(workspace: Workspace, name: str, seed: int, rows: int) -> None:
    for part in ("train", "dev"):
        (workspace.folder / f"data/raw/{name}/{part}").mkdir(parents=True, exist_ok=True)
    write_triplets(workspace.folder / f"data/raw/{name}/train/rows.csv", rows, seed)
    write_pairs(workspace.folder / f"data/raw/{name}/dev/dev.csv", 24, seed)


@pytest.fixture(scope="module")
def flow_run(tmp_path_factory) -> tuple[Workspace, str, list[dict[str, Any]]]:
    workspace = tiny_clone(
        tmp_path_factory.mktemp("bank") / "clone", bank__domains=DOMAINS, promotion__dev_tolerance=1000.0
    )
    for seed, name in enumerate(DOMAINS, start=5):
        write_domain(workspace, name, seed, rows=48)
    workspace.commit()
    return workspace, *run_script(workspace, SCRIPT)


@pytest.fixture(scope="module")
def found(flow_run) -> list[dict[str, Any]]:
    return flow_run[2]


def column(run: dict[str, Any], key: str) -> dict[str, Any]:
    return {row["domain"]: row.get(key) for row in run["table"]}


def test_the_first_run_trains_admits_and_registers(flow_run, found):
    first = found[0]
    assert (first["state"], first["message"]) == ("COMPLETED", "3 of 3 domains trained; 3 entered data/bank")
    assert first["tasks"] == [["train", "Executed"], ["bank", "Completed"], ["register", "Completed"]]
    assert first["stale"] == []
    production = [f"sentence-encoder-{name}#production#1" for name in DOMAINS]
    assert sorted(first["tags"]) == sorted(VERSIONS + production)
    assert column(first, "stage") == dict.fromkeys(DOMAINS, "Executed")
    assert column(first, "bank") == dict.fromkeys(DOMAINS, "added")
    assert column(first, "version") == dict.fromkeys(DOMAINS, "v1.0.0")


def test_a_version_names_what_was_trained(flow_run, found):
    """The commit behind the tag lists the domain's files, though nobody committed anything."""
    for name in DOMAINS:
        version = f"sentence-encoder-{name}@v1.0.0"
        lock = flow_run[0].run("git", "show", f"{version}:dvc.lock")
        assert f"domain@{name}:" in lock
        scores = json.loads(flow_run[0].run("git", "show", f"{version}:data/metrics/domains/{name}.json"))
        assert scores["dev_spearman"] == pytest.approx(column(found[0], "dev")[name])
    assert flow_run[0].run("git", "log", "--format=%s").split() == ["work", "work", "work"]


def test_a_second_run_trains_nothing_and_the_gate_refuses_and_says_why(found):
    first, second = found[:2]
    assert second["state"] == "COMPLETED"
    reason = "calls refused: no parity with torch: "
    assert second["message"].startswith(f"0 of 3 domains trained; 0 entered data/bank; {reason}")
    assert second["tasks"] == [["train", "Skipped"], ["bank", "Completed"]]
    assert column(second, "stage") == dict.fromkeys(DOMAINS, "Skipped"), "the tolerance trains nothing"
    assert column(second, "bank") == {"calls": "refused", "mail": "unchanged", "tickets": "unchanged"}
    assert column(second, "version") == dict.fromkeys(DOMAINS, "-")
    assert column(second, "dev") == column(first, "dev")
    assert second["tags"] == first["tags"]
    assert second["bank"] == {name: digest for name, digest in first["bank"].items() if "calls" not in name}


def test_only_what_changed_is_trained_and_a_failure_keeps_no_other_from_the_bank(flow_run, found):
    first, last = found[0], found[2]
    assert last["state"] == "FAILED"
    said = "1 of 3 domains trained; 2 entered data/bank; train: 1 of 2 domains failed: mail: "
    assert last["message"].startswith(said)
    assert "data/raw/mail/train/rows.csv" in last["message"]
    assert last["tasks"] == [["train", "Failed"], ["bank", "Completed"], ["register", "Completed"]]
    assert last["stale"] == ["domain@mail"]
    assert column(last, "stage") == {"calls": "Skipped", "mail": "Failed", "tickets": "Executed"}
    assert column(last, "bank") == {"calls": "added", "mail": None, "tickets": "replaced"}
    assert column(last, "version") == {"calls": "v1.1.0", "mail": None, "tickets": "v1.1.0"}
    assert column(last, "dev before")["tickets"] is not None
    assert last["bank"].keys() == first["bank"].keys()
    assert last["bank"]["mail.safetensors"] == first["bank"]["mail.safetensors"]
    assert last["bank"]["tickets.safetensors"] != first["bank"]["tickets.safetensors"]
    assert sorted(set(last["tags"]) - set(first["tags"])) == [
        f"sentence-encoder-{name}{tag}" for name in ("calls", "tickets") for tag in ("#production#2", "@v1.1.0")
    ]
    assert flow_run[0].run("cse", "bank", "check", "data/bank") == "data/bank: 3 of 3 domains are whole\n"


@pytest.fixture(scope="module")
def copy(flow_run, tmp_path_factory) -> Workspace:
    """A copy of the clone in which the rows of domain mail are those of its training again."""
    workspace = flow_run[0].copy(tmp_path_factory.mktemp("copy") / "clone")
    write_domain(workspace, "mail", seed=6, rows=48)
    return workspace


def changed(workspace: Workspace) -> list[str]:
    """The domains that DVC would run, as the flow asks for them; this folder is not the clone's."""
    tree = YAML(typ="safe", pure=True).load(workspace.folder / "params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_SITE_CACHE_DIR", workspace.environment["DVC_SITE_CACHE_DIR"])
        return changed_domains(workspace.folder, sorted(tree["bank"]["domains"]))


def test_what_makes_a_domain_stale(copy):
    """DVC alone decides; nothing is trained here."""
    original = (copy.folder / "params.yaml").read_text()
    tickets = DOMAINS["tickets"] | {"set": {"train.learning_rate": 0.2}}
    for values, expected in (
        ({"tune.trials": 3, "bank.at_once": 1, "promotion.dev_tolerance": 2.0, "export.tolerance": 1e-4}, []),
        ({"bank.domains": DOMAINS | {"tickets": tickets}}, ["tickets"]),
        ({"bank.domains": DOMAINS | {"new": {"data": "data/raw/mail"}}}, ["new"]),
        ({"bank.domains": {"mail": DOMAINS["mail"]}}, []),
        ({"train.batch_size": 4}, list(DOMAINS)),
        ({"evaluation.measures": ["sts"]}, list(DOMAINS)),
    ):
        copy.set(values)
        assert changed(copy) == expected, values
        (copy.folder / "params.yaml").write_text(original)
    for path, expected in (
        ("data/raw/tickets/dev/dev.csv", ["tickets"]),
        ("data/raw/evaluation/evaluation.csv", list(DOMAINS)),
        ("data/raw/train/rows.csv", []),  # of the pipeline's own model
        ("cse/export/parity.py", []),
        ("cse/stages/bank.py", []),
        ("cse/model/prompts.py", list(DOMAINS)),
    ):
        before = (copy.folder / path).read_bytes()
        (copy.folder / path).write_bytes(before + b"\n")
        assert changed(copy) == expected, path
        (copy.folder / path).write_bytes(before)
    assert changed(copy) == []
