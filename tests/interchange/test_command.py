"""``cse import`` from end to end."""

from __future__ import annotations

import numpy as np

import cse as library
from cse.cli.exchange import LAYOUTS
from cse.interchange.importing import KINDS
from tests.cli.workspace import contents
from tests.interchange import released
from tests.interchange.released import dense, language_model, prefix, training_layout


def test_imported_model_is_a_checkpoint_like_any_other(cse, tiny_folders, tmp_path, monkeypatch):
    """It embeds, it exports, and a second import may replace it."""
    monkeypatch.chdir(tmp_path)
    bert = tiny_folders["bert"]
    tensors = training_layout("bert", language_model(bert), prefix_encoder=prefix(), mlp=dense())
    released.save(tmp_path / "promcse", tensors, bert)
    words = f"import promcse --as promcse --backbone {bert} --pooler cls_before_pooler --out model".split()
    done = cse(*words)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"language model: 53 tensors, equal to those of {bert}",
        "prefix: 5 keys and values in each layer",
        "projector: not used at inference",
        "left out 3 tensors that inference does not need: bert.embeddings.position_ids (1), mlp.* (2)",
        "model: checkpoint of promcse (promcse); try `cse evaluate model`",
    ]
    before = contents(tmp_path / "model")
    assert cse(*words).code == 0
    assert contents(tmp_path / "model") == before
    assert cse("encode", "model", "--out", "vectors.npy", stdin=b"a cat sleeps\na dog\n").code == 0
    found = np.load(tmp_path / "vectors.npy")
    np.testing.assert_array_equal(found, library.SentenceEncoder.load("model").encode(["a cat sleeps", "a dog"]))


def test_mistakes_are_one_line_and_leave_nothing(cse, tiny_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bert = tiny_folders["bert"]
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes.txt").write_text("mine")
    start = ("import", "nowhere", "--as", "promcse", "--backbone")
    assert "nowhere: no such file or folder" in cse(*start, bert, "--pooler", "cls", "--out", "x").refused()
    assert "--backbone: no folder ./ghost" in cse(*start, "./ghost", "--pooler", "cls", "--out", "x").refused()
    assert "taken: holds files that cse did not put there" in cse(*start, bert, "--out", "taken").refused()
    assert "'promcs' is not one of" in cse("import", "x", "--as", "promcs", "--backbone", "x", "--out", "x").refused()
    assert not (tmp_path / "x").exists()
    assert LAYOUTS == KINDS, "the choices that the command names"
