"""Two workers that share a batch equal one: NCCL where there are two GPUs, gloo in the dry form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.gpu.base import CPU, DEVICE, TOLERANCE, distance, relative
from tests.parts import Cut
from tests.training.systems import take_step

NAMES = ("promcse", "hinge", "masked_lm", "d2cse", "full")
ROWS = np.array([3, 17, 0, 9, 31, 5, 22])
SCRIPT = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from cse.losses.group import Group
from tests.gpu.test_workers import NAMES, step
rank, backend, folder, meeting, out = int(sys.argv[1]), sys.argv[2], *map(Path, sys.argv[3:])
torch.set_num_threads(1)
device = torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=2)
torch.save({name: step(name, folder, device, Group.joined(device)) for name in NAMES}, out / f"{rank}.pt")
dist.destroy_process_group()
"""


def step(name, folder, device, *group) -> dict:
    found = take_step(name, folder, ROWS, Cut(3, None), *group, device=device, precision="fp32")
    return found | {"gradients": {name: value.cpu() for name, value in found["gradients"].items()}}


@pytest.fixture(scope="module")
def workers(folder, device, tmp_path_factory) -> list[dict]:
    """What each worker found."""
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, found {torch.cuda.device_count()}")
    out, backend = tmp_path_factory.mktemp("workers"), "nccl" if device.type == "cuda" else "gloo"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), backend, folder, out / "meeting", out],
            stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said[0][-500:] + said[1][-500:]
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_two_workers_equal_one(folder, workers, figure, name):
    expected = step(name, folder, CPU)
    shares = [sum(rows for rows, _ in worker[name]["slices"]) for worker in workers]
    assert sum(shares) == sum(rows for rows, _ in expected["slices"]) and min(shares) > 0
    for worker in workers:
        apart = relative(worker[name]["terms"], expected["terms"])
        gradients = distance(worker[name]["gradients"], expected["gradients"])
        assert max(apart, gradients) <= TOLERANCE["fp32"]
    figure(f"{'NCCL' if DEVICE.type == 'cuda' else 'gloo'}: losses {apart:.0e}, gradients {gradients:.0e}")
