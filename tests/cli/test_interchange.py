"""``cse export --format``: folders for other tools, from the command line."""

from __future__ import annotations

import numpy as np
import pytest

import cse as library

TEXTS = ["the cat sits on the mat", "dog", ""]


pytestmark = pytest.mark.usefixtures("code_cache")


def test_a_folder_for_sentence_transformers(cse, project):
    loaded = pytest.importorskip("sentence_transformers")
    done = cse("export", "--format", "sentence-transformers", "--out", "there")
    assert done.code == 0, done.err
    assert "load it with SentenceTransformer('there', trust_remote_code=True)" in done.out
    model = loaded.SentenceTransformer("there", trust_remote_code=True, device="cpu")
    expected = library.SentenceEncoder.load("data/checkpoint").encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5, rtol=0)


def test_a_bare_backbone_without_prepared_data(cse, project, tiny_folders, tmp_path):
    pytest.importorskip("sentence_transformers")
    given = ("--data", tmp_path / "none", "--format", "sentence-transformers", "--out", "there")
    done = cse("export", tiny_folders["bert"], *given)
    assert done.code == 0, done.err
    assert done.out.endswith("on 5 sentences; load it with SentenceTransformer('there')\n")


def test_an_adapter(cse, project):
    done = cse("export", "--format", "peft", "--out", "adapter")
    assert done.code == 0, done.err
    assert "largest difference of peft" in done.out or "peft is not installed" in done.out
    assert (project / "adapter/adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "peft"], "--format peft: name a folder to write with --out"),
        (["--format", "peft", "--out", "data/bundle"], "data/bundle: holds another kind of output"),
        (["data/bundle", "--format", "peft", "--out", "x"], "data/bundle: this is an ONNX bundle"),
        (["--format", "safetensors", "--out", "x"], "'safetensors' is not one of 'onnx'"),
    ],
)
def test_mistakes_are_one_line(cse, project, arguments, line):
    assert line in cse("export", *arguments).refused()
    assert not (project / "x").exists()
