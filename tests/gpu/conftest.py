"""Tests of what is different on a GPU: each compares the device with the CPU.

``CSE_TEST_DEVICE`` is the device, ``cuda`` or ``cpu`` (the dry form); ``CSE_GPU_REPORT`` a file to which each test adds
a line of JSON as it ends, so that a process that dies hides nothing. ``make gpu`` sets both.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.export.systems import PARTS, ROWS, make_encoder
from tests.gpu.base import DEVICE, REPORT_VARIABLE
from tests.parts import backbone_of
from tests.tiny import make_backbone_folder


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device() -> torch.device:
    if DEVICE.type == "cuda" and not torch.cuda.is_available():
        pytest.fail("torch sees no GPU; CSE_TEST_DEVICE=cpu is the dry form", pytrace=False)
    return DEVICE


@pytest.fixture(scope="session", autouse=True)
def exact_products():
    """Keep matrix products and convolutions in float32 out of TF32, and the CPU's sums in one order."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A tiny random BERT with its MLM head."""
    return make_backbone_folder(tmp_path_factory.mktemp("gpu") / "bert", "bert", head=True, max_position_embeddings=90)


@pytest.fixture(scope="session")
def encoder_of(tmp_path_factory):
    """Make an encoder of a kind of ``tests.export.systems``, on the CPU."""
    root = tmp_path_factory.mktemp("kinds")
    folders = {family: make_backbone_folder(root / family, family) for family in ("bert", "roberta")}

    def make(name):
        family, kind, options = (ROWS | PARTS)[name]
        return make_encoder(backbone_of(folders[family]), kind, **options)

    return make


@pytest.fixture
def figure(record_property):
    """Report a figure of the test: text, and a size by which the worst of several cases is found."""
    return lambda text, size=0.0: record_property("figure", (text, float(size)))


def _write(line: dict) -> None:
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def pytest_runtest_logstart(nodeid):
    _write({"test": nodeid, "result": "started"})


def pytest_runtest_logreport(report):
    if report.when != "call" and report.passed:
        return
    reason = ""
    if report.skipped:
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = reason.removeprefix("Skipped: ")
    elif report.failed:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        reason = lines[0].removeprefix("E ").strip() if lines else report.longreprtext[-200:]
    figure, size = max((value for name, value in report.user_properties if name == "figure"), default=("", 0.0))
    _write(
        {
            "test": report.nodeid, "result": report.outcome, "figure": figure, "size": size, "reason": reason,
            "seconds": round(report.duration, 2), "trace": report.longreprtext[-4000:] if report.failed else "",
        }
    )  # fmt: skip
