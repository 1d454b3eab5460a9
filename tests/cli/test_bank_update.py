"""``cse bank update``: trained domains that pass the gate enter the bank, the others leave it as it was."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cse.data.store import PreparedData
from cse.data.tasks.store import open_dev
from cse.evaluation.score import score_dev
from cse.model.checkpoint import WEIGHTS_FILE, identity_of, save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from cse.outputs import Kind, publish_folder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.cli.workspace import contents
from tests.tiny import make_backbone_folder, write_dev

TEXTS = ["the cat sits", "a small dog", "two friends"]
TICKETS = Path("data/domains/tickets")
NAMES = ("tickets", "mail", "late")  # the last one is never trained


def rewrite(folder: Path, encoder: SentenceEncoder) -> None:
    with publish_folder(folder, Kind.CHECKPOINT) as draft:
        save_checkpoint(encoder, draft)


def with_noise(checkpoint: Path, scale: float, seed: int = 0) -> SentenceEncoder:
    """The encoder of a checkpoint with noise of a standard deviation on its prompts."""
    encoder = load_checkpoint(checkpoint)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in encoder.trainable().values():
            weight.add_(scale * torch.randn(weight.shape, generator=noise))
    return encoder.eval()


@pytest.fixture(scope="module")
def made(trained, empty_banks, tmp_path_factory) -> Path:
    """A project with two trained domains, a worse checkpoint and an empty bank; do not change it."""
    folder = tmp_path_factory.mktemp("made") / "project"
    shutil.copytree(empty_banks("bert"), folder / "data/bank")
    entries = ", ".join(f"{name}: {{data: raw/{name}}}" for name in NAMES)
    (folder / "params.yaml").write_text(f"{(trained / 'params.yaml').read_text()}bank: {{domains: {{{entries}}}}}\n")
    dev = open_dev(PreparedData(trained / "data/prepared"))
    encoders = [with_noise(trained / "data/checkpoint", 2.0, seed) for seed in range(8)]
    scores = {score_dev(encoder, dev).value: encoder for encoder in encoders}
    assert max(scores) - min(scores) > 2, "these tests need two scores"
    rewrite(folder / "worse", scores[min(scores)])
    for name in NAMES[:2]:
        shutil.copytree(trained / "data/prepared", folder / "data/domains" / name / "prepared")
        rewrite(folder / "data/domains" / name / "checkpoint", scores[max(scores)])
    return folder


@pytest.fixture
def update(cse, project):
    """Run ``cse bank update`` and return what became of each domain."""

    def run(*arguments: str) -> dict[str, dict]:
        done = cse("bank", "update", *arguments, "--json", "found.json")
        assert done.code == 0, done.err
        return json.loads(Path("found.json").read_text())

    return run


def make_worse() -> None:
    shutil.rmtree(TICKETS / "checkpoint")
    shutil.copytree("worse", TICKETS / "checkpoint")


def outcomes(found: dict[str, dict]) -> dict[str, str]:
    return {name: facts["outcome"] for name, facts in found.items()}


def in_bank() -> dict[str, bytes]:
    return contents(Path("data/bank/domains"))


def test_added_then_unchanged_then_replaced_by_one_alike_and_by_no_worse_one(update, project, tiny_folders):
    found = update()
    assert outcomes(found) == {"tickets": "added", "mail": "added", "late": "not trained"}
    encoder = load_checkpoint(TICKETS / "checkpoint")
    dev, bare = open_dev(PreparedData(TICKETS / "prepared")), SentenceEncoder.load(tiny_folders["bert"])
    for name, one in (("dev", encoder), ("before", bare)):
        assert found["tickets"][name] == pytest.approx(score_dev(one, dev).value, abs=0.01)
    assert "run `dvc repro domain@late`" in found["late"]["reason"]
    bank = OnnxEncoder("data/bank", provider="cpu")
    np.testing.assert_allclose(bank.encode(TEXTS, domain="mail"), encoder.encode(TEXTS, normalize=True), atol=1e-5)
    assert bank.encode(TEXTS, domain="auto").shape == (3, 32)  # the centres of their text are there

    before = contents(Path("data/bank"))
    assert outcomes(update()) == {"tickets": "unchanged", "mail": "unchanged", "late": "not trained"}
    assert contents(Path("data/bank")) == before

    first, before = found, in_bank()
    rewrite(TICKETS / "checkpoint", with_noise(TICKETS / "checkpoint", 1e-4))
    found = update()
    assert outcomes(found) == {"tickets": "replaced", "mail": "unchanged", "late": "not trained"}
    assert found["tickets"]["before"] == first["tickets"]["dev"]
    after = in_bank()
    assert before.keys() == after.keys() and before["mail.safetensors"] == after["mail.safetensors"]
    held = OnnxEncoder("data/bank", provider="cpu").bank.domain("tickets")
    assert held.facts.checkpoint == identity_of(TICKETS / "checkpoint")

    first, before = found, contents(Path("data/bank"))
    make_worse()
    for _ in range(2):
        found = update()
        assert outcomes(found) == {"tickets": "refused", "mail": "unchanged", "late": "not trained"}
        lost, kept = found["tickets"]["dev"], found["tickets"]["before"]
        assert kept == first["tickets"]["dev"] > lost + 0.5
        said = f"dev Spearman {lost:.2f} is more than 0.5 below the bank's domain's {kept:.2f} on the same pairs"
        assert found["tickets"]["reason"].startswith(said)
        assert contents(Path("data/bank")) == before
    gap = kept - lost
    assert outcomes(update("tickets", "-s", f"promotion.dev_tolerance={gap - 0.1}")) == {"tickets": "refused"}
    assert outcomes(update("tickets", "-s", f"promotion.dev_tolerance={gap + 0.1}")) == {"tickets": "replaced"}


def test_a_new_domain_has_to_match_the_bare_backbone(update, project):
    make_worse()
    found = update("tickets", "mail")
    assert outcomes(found) == {"tickets": "refused", "mail": "added"}
    lost, bare = found["tickets"]["dev"], found["tickets"]["before"]
    assert list(in_bank()) == ["mail.safetensors"]
    assert outcomes(update("tickets", "-s", f"promotion.dev_tolerance={bare - lost + 0.1}")) == {"tickets": "added"}


def test_without_dev_pairs_the_first_enters_and_no_other(update, project):
    write_dev(TICKETS / "prepared", None)
    assert outcomes(update("tickets")) == {"tickets": "added"}
    before = in_bank()
    rewrite(TICKETS / "checkpoint", with_noise(TICKETS / "checkpoint", 1e-4))
    found = update("tickets")
    assert outcomes(found) == {"tickets": "refused"}
    assert "no dev pairs for comparison" in found["tickets"]["reason"]
    assert in_bank() == before


def test_damaged_and_foreign_checkpoints_do_not_stop_the_others(update, project):
    weights = TICKETS / "checkpoint" / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-1])
    found = update("tickets", "mail")
    assert outcomes(found) == {"tickets": "refused", "mail": "added"}
    assert str(weights) in found["tickets"]["reason"]

    other = SentenceEncoder.load(make_backbone_folder(project / "other", "bert", seed=1))
    rewrite(Path("data/domains/late/checkpoint"), other)
    shutil.copytree(TICKETS / "prepared", "data/domains/late/prepared")
    found = update("late", "mail")
    assert outcomes(found) == {"late": "refused", "mail": "unchanged"}
    assert "another backbone" in found["late"]["reason"]
    assert list(in_bank()) == ["mail.safetensors"]


def test_a_bank_that_is_not_there_is_made(update, project):
    assert outcomes(update("mail", "--bank", "elsewhere")) == {"mail": "added"}
    assert (in_bank(), list(contents(Path("elsewhere/domains")))) == ({}, ["mail.safetensors"])
    made_here, given = (OnnxEncoder(place, provider="cpu") for place in ("elsewhere", "data/bank"))
    assert made_here.manifest.backbone == given.manifest.backbone


def test_mistakes_are_one_line_and_write_nothing(cse, project):
    assert cse("bank", "update", "ticket").refused() == "ticket: not in bank.domains; did you mean 'tickets'?"
    assert "bank.domains: names no domains" in cse("bank", "update", "-s", "bank.domains={}").refused()
    assert cse("bank", "update", "mail", "--json", "params.yaml").refused().startswith("params.yaml: ")
    assert in_bank() == {}
