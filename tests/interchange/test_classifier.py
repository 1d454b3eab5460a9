"""A folder for sentence-transformers with a classifier beside the model, which a few lines of numpy ask."""

import shutil

import pytest

from cse.data.tasks.store import write_tasks
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.pages.blocks import run_by
from tests.stages.test_dev_task import labelled

pytest.importorskip("sentence_transformers")
(BLOCK,) = run_by("docs/interchange.md", __file__)


def test_the_lines_of_the_page_tell_what_the_bundle_tells(cse, trained, tmp_path, monkeypatch, capsys):
    project = shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(project)
    task = labelled()
    write_tasks(project / "data/prepared", dev=task, test=[], own=[])
    to = ("--format", "sentence-transformers", "--out")
    done = cse("export", *to, "data/intents")
    assert done.code == 0 and "classifier of 4 labels" in done.out, done.err
    assert cse("export", "--out", "data/classifying").code == 0
    (told,) = OnnxEncoder("data/classifying", provider="cpu").classify(task.test[:1])
    capsys.readouterr()
    exec(BLOCK.text.replace("I have lost my card", task.test[0]), {})
    assert capsys.readouterr().out == f"['{told.label}']\n"

    given = cse("export", *to, "data/given", "--classifier", "data/classifying")
    assert given.code == 0 and "classifier of 4 labels" in given.out, given.err
    mine, theirs = (project / f"data/{name}/classifier.safetensors" for name in ("given", "classifying"))
    assert mine.read_bytes() == theirs.read_bytes()
    for words, says in (
        (("--format", "peft", "--out", "x"), "--classifier: an adapter has none"),
        (("--out", "x"), "--classifier: a bundle makes its own"),
        ((*to, "x", "--classifier", "data/bundle"), "data/bundle: no classifier; make one with"),
    ):
        assert says in cse("export", *words, *(() if "--classifier" in words else ("--classifier", "x"))).refused()
