"""The command line in a small installation: commands that work without training packages, one line for the others."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cse.cli.missing import INTERCHANGE, SERVER, TRAINING, naming_extra
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.deploy.bundles import LINES, write_bundle

ROOT = Path(__file__).parents[2]
# other names than their distributions
MODULES = {
    "scikit-learn": "sklearn", "ruamel.yaml": "ruamel", "lxml-html-clean": "lxml_html_clean",
    "markdown-it-py": "markdown_it", "PyStemmer": "Stemmer",
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("small") / "bundle")


def run(*arguments: object, without=TRAINING, stdin: str = "", folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run ``cse`` where no module of these names can be imported."""
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules.update(dict.fromkeys({sorted(without)}))\n"
        "from cse.cli import main; main()"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, cwd=folder)


def test_help_needs_no_training_package():
    done = run("--help")
    assert done.returncode == 0, done.stderr
    shown = dict(re.findall(r"^  (\w+) {2,}(.+)$", done.stdout, re.MULTILINE))
    assert shown["encode"].startswith("Embed TEXT")
    assert shown["tune"].startswith("Search for settings") and shown["flow"].startswith("Run the pipeline")


def test_a_command_of_another_package_is_refused_when_it_is_called():
    done = run("tune")
    assert done.returncode == 2, done.stdout
    assert re.fullmatch(r"error: this command needs the training packages \(\w+ is missing\): .*\n", done.stderr)


def test_a_bundle_encodes_without_training_packages(bundle, tmp_path):
    out = tmp_path / "x.npy"
    done = run("encode", bundle, "--out", out, "--device", "cpu", stdin="\n".join(LINES) + "\n")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(out), OnnxEncoder(bundle, provider="cpu").encode(LINES), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "without", "line"),
    [
        (
            ["train"],
            TRAINING,
            r"this command needs the training packages \(\w+ is missing\): pip install 'cse\[train\]'",
        ),
        (
            ["encode", "some/backbone", "--out", "x.npy"],
            TRAINING,
            "some/backbone: not a bundle or a bank's domain; any other model needs the training packages",
        ),
        (
            ["encode", "BUNDLE", "--out", "x.npy"],
            ["onnxruntime"],
            r"this command needs onnxruntime: pip install 'cse\[cpu",
        ),
        (
            ["--help"],
            SERVER,
            r"the command line needs the server packages \(\w+ is missing\): pip install 'cse\[serve\]'",
        ),
    ],
    ids=["train", "backbone", "onnxruntime", "no command line"],
)
def test_a_missing_package_is_one_line(bundle, tmp_path, arguments, without, line):
    (tmp_path / "params.yaml").write_text("{}\n")
    for name in ("data/prepared", "data/checkpoint"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/checkpoint/checkpoint.json").write_text("{}\n")
    found = [str(bundle) if word == "BUNDLE" else word for word in arguments]
    done = run(*found, without=without, stdin="the cat\n", folder=tmp_path)
    assert done.returncode == 2, done.stdout
    assert re.fullmatch(f"error: {line}.*\n", done.stderr), done.stderr
    assert not (tmp_path / "x.npy").exists()


def test_a_missing_package_that_only_one_format_needs(cse, empty, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    monkeypatch.delitem(sys.modules, "cse.interchange.sentence_transformers", raising=False)
    (empty / "params.yaml").write_text("{}")
    for name in ("data/prepared", "data/checkpoint"):
        (empty / name).mkdir(parents=True)
    (empty / "data/checkpoint/checkpoint.json").write_text("{}")
    line = cse("export", "--format", "sentence-transformers", "--out", "x.npy").refused()
    assert line == "this command needs sentence-transformers: pip install 'cse[interchange]'"


def test_what_no_extra_brings_is_a_defect():
    for name in ("cse.nowhere", "flows.nowhere", "something_else"):
        with pytest.raises(ModuleNotFoundError), naming_extra():
            raise ModuleNotFoundError(name=name)


def test_every_package_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra, known in {"serve": SERVER, "train": SERVER | TRAINING, "interchange": INTERCHANGE | {"cse"}}.items():
        names = {re.match(r"[\w.-]+", requirement)[0] for requirement in extras[extra]}
        assert {MODULES.get(name, name.replace("-", "_")) for name in names} <= known
