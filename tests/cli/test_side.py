"""A checkpoint with a query side through the commands: export, bank, encode, evaluate."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.model.checkpoint import save_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.bundle import read_manifest
from tests.parts import backbone_of
from tests.rows import write_lines
from tests.sides import PARTS, query_side

TEXTS = ["the cat sits on the mat", "a small dog", "two friends"]


@pytest.fixture(params=["prompt", "map"])
def project(request, trained, tiny_folders, tmp_path, monkeypatch) -> Path:
    """A trained project whose checkpoint is one with a query side, and lines to encode."""
    folder = Path(shutil.copytree(trained, tmp_path / "project", ignore=shutil.ignore_patterns("checkpoint")))
    (folder / "data/checkpoint").mkdir()
    encoder = query_side(backbone_of(tiny_folders["bert"]), **PARTS[request.param])
    save_checkpoint(encoder, folder / "data/checkpoint")
    write_lines(folder / "questions.txt", TEXTS)
    monkeypatch.chdir(folder)
    return folder


def test_as_the_pages_say(cse, project, empty_banks, tiny_folders):
    done = cse("export", "data/checkpoint", "--out", "data/bundle")
    assert done.code == 0, done.err
    manifest = read_manifest("data/bundle")
    assert manifest.only == "query"
    assert manifest.parity["of_training"] == pytest.approx(1, abs=1e-3)
    shutil.copytree(empty_banks("bert"), "data/bank")
    done = cse("bank", "add", "data/bank", "data/checkpoint", "--name", "legal")
    assert done.code == 0, done.err
    assert ", for queries alone, " in done.out
    expected = SentenceEncoder.load("data/checkpoint")
    for model in ("data/bank:legal", "data/bundle", "data/checkpoint"):
        for given in ((), ("--role", "query")):
            assert cse("encode", model, "questions.txt", *given, "--out", "vectors.npy").code == 0
            vectors = expected.encode(TEXTS, role="query" if given else None)
            np.testing.assert_allclose(np.load("vectors.npy"), vectors, atol=1e-5)
    done = cse("evaluate", "data/checkpoint", str(tiny_folders["bert"]))
    assert done.code == 0, done.err
    ours, theirs = (line.split()[1:] for line in done.out.splitlines()[1:3])
    assert ours == theirs and len(ours) == 3, "STS asks for no role"
