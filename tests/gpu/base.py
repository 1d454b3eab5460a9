"""What the tests of a GPU share: the device, tolerances, and how two runs are compared."""

import os
from collections.abc import Mapping

import pytest
import torch

from cse.training.state import RunFolder
from tests.parts import train
from tests.training.helpers import Recorder

DEVICE_VARIABLE, REPORT_VARIABLE = "CSE_TEST_DEVICE", "CSE_GPU_REPORT"
DEVICE = torch.device(os.environ.get(DEVICE_VARIABLE, "cuda"))
CPU = torch.device("cpu")
# largest difference from the CPU, relative to the largest value; bf16 keeps 8 bits, and both round
TOLERANCE = {"fp64": 1e-8, "fp32": 2e-4, "bf16": 5e-2}
needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")


def distance(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """Return the distance of two sets of tensors, relative to the second: one number over all."""
    assert found.keys() == expected.keys()
    assert expected, "nothing to compare"
    pairs = [(found[name].detach().cpu().double(), value.detach().cpu().double()) for name, value in expected.items()]
    assert all(a.shape == b.shape for a, b in pairs)
    apart = sum(((a - b) ** 2).sum().item() for a, b in pairs) ** 0.5
    size = sum((b**2).sum().item() for _, b in pairs) ** 0.5
    assert size > 0
    return apart / size


def relative(found: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Return the largest difference of numbers by name, relative to the expected."""
    assert found.keys() == expected.keys()
    assert expected, "nothing to compare"
    return max(abs(found[name] - value) / max(abs(value), 1e-3) for name, value in expected.items())


def fit(system, plan, folder, device, recorder=None, **options):
    """Train a system and return its encoder, final state and recorder."""
    encoder, losses, table = system
    recorder = recorder or Recorder()
    state = train(
        encoder, losses, table, plan, folder=RunFolder(folder), observer=recorder, device=device,
        **{"dev": None} | options,
    )  # fmt: skip
    return encoder, state, recorder
