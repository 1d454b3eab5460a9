"""``cse bank`` and the commands that take a bank."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.export.domains import remove_domain
from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.settings.load import flatten
from tests.cli.workspace import contents
from tests.export.banks import make_adapted, make_bank, make_encoder
from tests.rows import write_lines, write_table
from tests.tiny import make_backbone_folder

KINDS = ("bare", "hidden", "plain")
TEXTS = ["the cat sits", "a small dog", "two friends"]


@pytest.fixture(scope="module")
def made(trained, tiny_folders, empty_banks, tmp_path_factory) -> Path:
    """A trained project with a bank of three domains, and their checkpoints, beside it; do not change it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "project"))
    encoders = {name: make_encoder(tiny_folders["bert"], name, seed) for seed, name in enumerate(KINDS)}
    make_bank(folder / "bank", empty_banks("bert"), encoders)
    for name, encoder in encoders.items():
        (folder / name).mkdir()
        save_checkpoint(encoder, folder / name)
    write_table(folder / "rows.csv", ("text", "queue"), zip(TEXTS, ("hidden", "hidden", "bare"), strict=True))
    write_lines(folder / "lines.txt", TEXTS)
    return folder


def test_from_a_checkpoint_to_vectors(cse, project):
    assert cse("bank", "create", "own", "data/checkpoint").code == 0
    done = cse("bank", "add", "own", "data/checkpoint", "--name", "tickets", "--data", "data/prepared")
    assert done.code == 0, done.err
    assert cse("encode", "own:tickets", "lines.txt", "--out", "bank.npy").code == 0
    assert cse("encode", "data/bundle", "lines.txt", "--out", "bundle.npy").code == 0
    np.testing.assert_allclose(np.load("bank.npy"), np.load("bundle.npy"), atol=1e-5)
    assert cse("encode", "own:auto", "lines.txt", "--out", "auto.npy").code == 0
    np.testing.assert_array_equal(np.load("auto.npy"), np.load("bank.npy"))
    shown = json.loads(cse("bank", "list", "own", "--json").out)["tickets"]
    assert shown["checkpoint"] == OnnxEncoder("data/bundle", provider="cpu").bank.only.facts.checkpoint
    assert shown["bytes"] == (project / "own/domains/tickets.safetensors").stat().st_size


def test_list_replace_remove_check(cse, project):
    listed = cse("bank", "list", "bank").out.splitlines()
    assert [line.split()[0] for line in listed] == ["domain", *KINDS]
    assert "hidden_state x 7" in listed[2]
    again = ("bank", "add", "bank", "data/checkpoint", "--name", "hidden")
    assert "has a domain hidden already" in cse(*again).err
    assert cse(*again, "--replace").code == 0
    assert "key_value" in cse("bank", "list", "bank").out
    assert cse("bank", "check", "bank").out == "bank: 3 of 3 domains are whole\n"
    (project / "bank/domains/foreign.safetensors").write_bytes(b"?")
    done = cse("bank", "check", "bank")
    assert (done.code, done.out) == (2, "bank: 3 of 4 domains are whole\n")
    assert "foreign.safetensors: truncated or not a domain" in done.err
    assert "refused" in cse("bank", "list", "bank").err
    assert "not an earlier output" in cse("bank", "remove", "bank", "foreign").err
    (project / "bank/domains/foreign.safetensors").unlink()
    assert cse("bank", "remove", "bank", "hidden").code == 0
    assert cse("bank", "check", "bank").out == "bank: 2 of 2 domains are whole\n"


def test_lora_from_a_checkpoint_to_vectors(cse, project, tiny_folders):
    encoder = make_adapted(tiny_folders["bert"], "lora", prompt=3, rank=2)
    with publish_folder(Path("adapted"), Kind.CHECKPOINT) as draft:
        save_checkpoint(encoder, draft)
    said = cse("bank", "add", "bank", "adapted", "--name", "own").refused()
    assert "domain own: it has " in said and "the bank takes prompts alone; create a bank with" in said
    assert cse("bank", "create", "wide", str(tiny_folders["bert"]), "-s", "bank.adapters=[all]").code == 0
    done = cse("bank", "add", "wide", "adapted", "--name", "own", "--data", "data/prepared")
    assert done.code == 0, done.err
    assert "key_value x 3 + lora x 2" in cse("bank", "list", "wide").out
    assert cse("bank", "add", "wide", str(tiny_folders["bert"]), "--name", "bare").code == 0
    write_table(Path("mixed.csv"), ("text", "queue"), [(text, name) for text in TEXTS for name in ("own", "bare")])
    assert cse("encode", "wide", "mixed.csv", "--domain-column", "queue", "--out", "mixed.npy").code == 0
    adapted, bare = (np.load("mixed.npy")[side::2] for side in (0, 1))
    np.testing.assert_allclose(adapted, encoder.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(bare, SentenceEncoder.load(str(tiny_folders["bert"])).encode(TEXTS), atol=1e-5)
    assert np.abs(adapted - bare).max() > 0.01


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("bank add bank other --name x", "another backbone"),
        ("bank add bank data/checkpoint --name a/b", "domain 'a/b': not a valid name"),
        ("bank add data/bundle data/checkpoint --name x", "data/bundle: a bundle of one model, not a bank"),
        ("bank create bank data/checkpoint", "bank: holds files that cse did not put there"),
        ("bank remove bank hiden", "no domain 'hiden'; did you mean 'hidden'"),
        ("encode bank lines.txt --out x.npy", "bank: a bank; name one of its domains, for instance bank:bare"),
        ("encode bank:auto lines.txt --out x.npy", "added with their text"),
        ("encode data/bundle rows.csv --domain-column queue --out x.npy", "data/bundle: a bundle of one model"),
        ("encode bank rows.csv --domain-column queu --out x.npy", "no column 'queu'"),
        ("encode bank lines.txt --domain-column queue --out x.npy", "lines.txt has no columns"),
    ],
)
def test_mistakes_are_one_line(cse, project, tmp_path, arguments, line):
    if "other" in arguments:
        make_backbone_folder(project / "other", "bert", seed=1)
    before = contents(project / "bank")
    assert line in cse(*arguments.split()).refused()
    assert contents(project / "bank") == before


def scores(cse, *arguments):
    """The scores of each model by task, from ``--json``, and what was said."""
    done = cse("evaluate", *arguments, "--json", "scores.json")
    assert done.code == 0, done.err
    return {name: of["sts"] for name, of in json.loads(Path("scores.json").read_text()).items()}, done.err


def test_a_bank_stands_for_its_domains_and_a_record_is_that_of_one(cse, project):
    found, _ = scores(cse, "bank", "data/bundle", "b=bank", "one=bank:hidden", "--out", "records")
    names = [f"bank:{kind}" for kind in KINDS] + ["data/bundle"] + [f"b:{kind}" for kind in KINDS] + ["one"]
    assert list(found) == names
    alone, _ = scores(cse, *KINDS)
    for kind in KINDS:
        assert found[f"bank:{kind}"] == found[f"b:{kind}"]
        assert flatten(found[f"bank:{kind}"]) == pytest.approx(flatten(alone[kind]), abs=0.02)
    assert found["one"] == found["bank:hidden"]
    assert len({json.dumps(found[f"bank:{kind}"]) for kind in KINDS}) == len(KINDS)
    record = json.loads(Path("records/bank-hidden/record.json").read_text())
    assert (record["name"], record["model"]["prompt"]["kind"]) == ("bank:hidden", "hidden_state")


def test_domains_that_cannot_be_measured(cse, project, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("cse.stages.evaluate.evaluate_suite", lambda *_, **__: pytest.fail("work has started"))
        assert "bank:bare: given twice; write NAME=MODEL" in cse("evaluate", "bank", "bank:bare").refused()
    damaged = project / "bank/domains/hidden.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:200])
    found, told = scores(cse, "bank")
    assert list(found) == ["bank:bare", "bank:plain"]
    assert "warning: left out: bank/domains/hidden.safetensors: truncated" in told
    for name in KINDS:
        remove_domain(project / "bank", name)
    assert "bank: no usable domain in the bank; `cse bank add` adds one" in cse("evaluate", "bank").refused()
