"""``cse export --format``: folders for other tools; those of a checkpoint are made in docs/interchange.md."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("code_cache")


def test_a_bare_backbone_without_prepared_data(cse, project, tiny_folders, tmp_path):
    pytest.importorskip("sentence_transformers")
    given = ("--data", tmp_path / "none", "--format", "sentence-transformers", "--out", "there")
    done = cse("export", tiny_folders["bert"], *given)
    assert done.code == 0, done.err
    assert done.out.endswith("on 5 sentences; load it with SentenceTransformer('there')\n")


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
