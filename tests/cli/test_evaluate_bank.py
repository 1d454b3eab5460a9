"""``cse evaluate`` with a bank: a row and a record per domain, with the scores of that domain's prompts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.export.domains import remove_domain
from cse.model.checkpoint import save_checkpoint
from tests.export.banks import make_bank, make_encoder

KINDS = ("bare", "hidden", "plain")


@pytest.fixture(scope="module")
def made(trained, tiny_folders, empty_banks, tmp_path_factory) -> Path:
    """A trained project with a bank of three domains beside it; do not change it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "project"))
    encoders = {name: make_encoder(tiny_folders["bert"], name, seed) for seed, name in enumerate(KINDS)}
    make_bank(folder / "bank", empty_banks("bert"), encoders)
    for name, encoder in encoders.items():
        (folder / name).mkdir()
        save_checkpoint(encoder, folder / name)
    return folder


def scores(cse, *arguments):
    """The scores of each model by task, from ``--json``."""
    done = cse("evaluate", *arguments, "--json", "scores.json")
    assert done.code == 0, done.err
    found = json.loads(Path("scores.json").read_text())
    return {name: found[name]["sts"] for name in found}, done


def numbers(tree) -> list[float]:
    """Every number of some scores, in the order of their keys."""
    if isinstance(tree, dict):
        return [number for key in sorted(tree) for number in numbers(tree[key])]
    return [tree] if isinstance(tree, int | float) else []


def test_a_bank_stands_for_its_domains(cse, project):
    found, _ = scores(cse, "bank", "data/bundle", "b=bank", "one=bank:hidden")
    names = [f"bank:{kind}" for kind in KINDS] + ["data/bundle"] + [f"b:{kind}" for kind in KINDS] + ["one"]
    assert list(found) == names
    alone, _ = scores(cse, *KINDS)
    for kind in KINDS:
        assert found[f"bank:{kind}"] == found[f"b:{kind}"]
        np.testing.assert_allclose(numbers(found[f"bank:{kind}"]), numbers(alone[kind]), atol=0.02)
    assert found["one"] == found["bank:hidden"]
    assert len({json.dumps(found[f"bank:{kind}"]) for kind in KINDS}) == len(KINDS)


def test_a_record_is_that_of_a_domain(cse, project):
    done = cse("evaluate", "bank", "x=bank:auto", "--out", "records")
    assert "domain auto needs domains that were added with their text" in done.err.splitlines()[-1]
    assert cse("evaluate", "bank", "--out", "records").code == 0
    records = {path.parent.name: json.loads(path.read_text()) for path in Path("records").glob("*/record.json")}
    assert {name: record["name"] for name, record in records.items()} == {
        f"bank-{kind}": f"bank:{kind}" for kind in KINDS
    }
    assert records["bank-hidden"]["model"]["prompt"]["kind"] == "hidden_state"


def test_domains_that_cannot_be_measured(cse, project, monkeypatch):
    monkeypatch.setattr("cse.stages.evaluate.evaluate_suite", lambda *_, **__: pytest.fail("work has started"))
    assert "bank:bare: given twice; write NAME=MODEL" in cse("evaluate", "bank", "bank:bare").refused()
    monkeypatch.undo()
    monkeypatch.chdir(project)
    damaged = project / "bank/domains/hidden.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:200])
    found, done = scores(cse, "bank")
    assert list(found) == ["bank:bare", "bank:plain"]
    assert "warning: left out: bank/domains/hidden.safetensors: truncated" in done.err
    for name in KINDS:
        remove_domain(project / "bank", name)
    assert "bank: no usable domain in the bank; `cse bank add` adds one" in cse("evaluate", "bank").refused()
