"""The command line in a small installation: one line for each command that needs more; what works without training
packages: tests/deploy/test_small_install.py.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cse.cli.missing import INTERCHANGE, RAY, SERVER, TRAINING
from tests.runtime.conftest import write_bundle

ROOT = Path(__file__).parents[2]
# other names than their distributions
MODULES = {
    "scikit-learn": "sklearn", "ruamel.yaml": "ruamel", "markdown-it-py": "markdown_it", "PyStemmer": "Stemmer",
}  # fmt: skip
NEEDS = "this command needs"


@pytest.mark.parametrize(
    ("words", "without", "line"),
    [
        ("train", TRAINING, rf"{NEEDS} the training packages \(\w+ is missing\): pip install 'cse\[train\]'"),
        ("tune", ["ray"], rf"{NEEDS} Ray, which sweeps and several workers use: pip install 'cse\[ray\]'"),
        ("flow train", ["prefect"], rf"{NEEDS} Prefect: pip install 'cse\[flows\]'"),
        ("encode some/backbone --out x.npy", TRAINING,
         "some/backbone: not a bundle or a bank's domain; any other model needs the training packages"),
        ("encode bundle --out x.npy", ["onnxruntime"], rf"{NEEDS} onnxruntime: pip install 'cse\[cpu"),
        ("--help", SERVER, r"the command line needs the server packages \(\w+ is missing\): pip install 'cse\[serve"),
    ],
)  # fmt: skip
def test_a_missing_package_is_one_line(tmp_path, words, without, line):
    """Run ``cse`` where no module of some names can be imported."""
    write_bundle(tmp_path / "bundle")
    (tmp_path / "params.yaml").write_text("{}\n")
    for name in ("data/prepared", "data/checkpoint"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/checkpoint/checkpoint.json").write_text("{}\n")
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules.update(dict.fromkeys({sorted(without)}))\n"
        "from cse.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()], input="the cat\n", capture_output=True, text=True, timeout=120,
        cwd=ROOT if words == "tune" else tmp_path,  # it looks for a project first
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    assert re.fullmatch(f"error: {line}.*\n", done.stderr), done.stderr
    assert not (tmp_path / "x.npy").exists()


def test_every_package_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    each = {"serve": SERVER, "train": SERVER | TRAINING, "ray": RAY | {"cse"}, "interchange": INTERCHANGE | {"cse"}}
    for extra, known in each.items():
        names = {re.match(r"[\w.-]+", requirement)[0] for requirement in extras[extra]}
        assert {MODULES.get(name, name.replace("-", "_")) for name in names} <= known
