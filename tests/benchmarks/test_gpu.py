"""`make gpu`: needs few packages, hides no result behind another, and stays out of the other runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import FAILED, PASSED, SKIPPED, TimeLeft, run_tests, table

ROOT = Path(__file__).parents[2]
BLOCKED = (
    "prefect", "dvc", "ray", "mlflow", "onnx", "onnxscript", "onnxruntime", "tensorboard", "matplotlib", "mteb",
    "optuna", "sklearn", "sentence_transformers", "peft", "accelerate", "fastapi",
)  # fmt: skip
CHOSEN = (
    "test_training.py::test_step_of_a_system[promcse-fp32]",
    "test_random.py::test_gradient_caching_in_bf16",
    "test_training.py::test_stage_train_with_a_preset[d2cse-unsup-bert-base]",
    "test_resume.py::test_stopped_and_started_again[promcse-fp32]",
    "test_encoding.py::test_encode[bert key_value mean]",
    "test_export.py::test_half_precision_on_the_devices_provider",
    "test_waits.py::test_a_wait_is_counted",
)
SCRIPT = """
import sys
from importlib.machinery import PathFinder
blocked, chosen = sys.argv[1].split(","), sys.argv[2:]

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in blocked else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import pytest
usual = ["-q", "-p", "no:cacheprovider"]
codes = [pytest.main([*usual, "tests/gpu", "--collect-only", *more]) for more in ([], ["-m", "slow"])]
codes.append(pytest.main([*usual, "-rs", "-m", "gpu", *chosen]))
loaded = sorted(name for name in blocked if name in sys.modules)
print("codes", *map(int, codes), "loaded", *loaded)
"""


@pytest.mark.slow
def test_few_packages_are_enough_and_other_runs_leave_the_tests_out():
    chosen = [f"tests/gpu/{name}" for name in CHOSEN]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(BLOCKED), *chosen],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
        env={**gpu.os.environ, "CSE_TEST_DEVICE": "cpu"},
    )  # fmt: skip
    # 5: nothing collected, in the default run and with `-m slow`
    assert done.stdout.splitlines()[-1] == "codes 5 5 0 loaded", done.stdout[-3000:] + done.stderr[-1000:]
    assert ".....s." in done.stdout and len(CHOSEN) == 7
    assert "needs onnx, onnxscript, onnxruntime" in done.stdout


TESTS = """
import os, pytest, time
pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("size", [1, 3, 2])
def test_figures(figure, size):
    figure(f"size {size}", size)

def test_wrong():
    assert 1 == 2, "not the same"

@pytest.mark.skip(reason="needs a hat")
def test_skipped():
    pass

def test_dies():
    os._exit(9)

def test_kernel():
    raise RuntimeError("CUDA error: device-side assert triggered")

def test_last():
    assert not os.environ.get("SPOILT")
"""


@pytest.mark.slow
def test_no_test_hides_another(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.gpu.conftest"]\n')
    hangs = "import pytest, time\npytestmark = pytest.mark.gpu\ndef test_hangs():\n    time.sleep(100)\n"
    for name, text in (("sample", TESTS), ("broken", "import no_such_package\n"), ("hanging", hangs)):
        (tmp_path / f"test_{name}.py").write_text(text)
    rows = run_tests(tmp_path / "test_sample.py", "cpu", TimeLeft(200))
    found = {each["case"]: (each["result"], each["reason"]) for each in rows}
    assert len(rows) == len(found) == 8
    assert found["last"] == found["figures[3]"] == (PASSED, "")
    assert found["wrong"][0] == FAILED and "not the same" in found["wrong"][1]
    assert found["skipped"] == (SKIPPED, "needs a hat")
    assert found["dies"][0] == FAILED and found["dies"][1].startswith("its process ended with 9")
    assert found["kernel"][0] == FAILED and "device-side assert" in found["kernel"][1]
    lines = [line.split() for line in table(rows).splitlines()]
    assert lines[1] == ["sample", "figures", "3", "passed", "size", "3"], "the worst figure of several cases"
    assert len([line for line in lines if "FAILED" in line]) > 3, "each failure has a line"
    (broken,) = run_tests(tmp_path / "test_broken.py", "cpu", TimeLeft(200))
    assert broken["result"] == FAILED and "no_such_package" in broken["reason"]
    rows = run_tests(tmp_path / "test_hanging.py", "cpu", TimeLeft(30))
    assert rows[0]["case"] == "hangs" and rows[0]["result"] == FAILED and "took more than" in rows[0]["reason"]
    assert [each["reason"] for each in rows[1:]] == ["no time left"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"^error: torch sees no GPU; `make gpu DEVICE=cpu` is the dry form$"):
        gpu.main()
