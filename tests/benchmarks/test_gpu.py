"""`make gpu`: needs few packages, hides no result behind another, and stays out of the other runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu

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
