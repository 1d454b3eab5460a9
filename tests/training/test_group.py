"""Workers that share a batch equal one worker: loss, gradients and a whole training, with real processes over gloo."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from cse.training.batch import NO_AUGMENTATION, Cut, encode_batch
from cse.training.group import ALONE, Group
from cse.training.loop import Plan, train
from cse.training.state import RunFolder
from tests.conftest import make_backbone_folder
from tests.training.helpers import Recorder
from tests.training.systems import SYSTEMS, make_system

ROWS = np.array([3, 17, 0, 9, 31, 5, 22, 8])
FEW = np.array([6])  # of an epoch's last rows there may be fewer than workers
# slices: a multiple of 2 and of 3 workers, so that padding, which replaced tokens count, is the same
PLAN = Plan(learning_rate=0.02, batch_size=8, epochs=1, cut=Cut(6), eval_every=3, save_seconds=0, seed=5)


def step(name, folder, rows, group, cut):
    encoder, losses, table = make_system(name, folder, dropout=0.0)
    batch = encode_batch(
        encoder, table, rows, cut=cut, augmentation=NO_AUGMENTATION, rng=np.random.default_rng(7), step=3, epoch=0,
        device=torch.device("cpu"), bf16=False, group=group,
    )  # fmt: skip
    terms = losses(batch)
    terms["loss"].backward()
    weights = encoder.trainable() | losses.trainable()
    group.average_gradients(weights)
    losses.after_update(batch)
    gradients = {n: w.grad for n, w in weights.items() if w.grad is not None}
    encoded = sum(len(piece.ids_BL) for piece in batch.slices)
    return {"terms": group.average(terms), "gradients": gradients, "memory": losses.memory(), "encoded": encoded}


def train_all(folder, scratch, group, plan):
    encoder, losses, table = make_system("hinge", folder, dropout=0.0)
    recorder = Recorder()

    def dev():
        return float(encoder.prompt.table.detach().sum())  # any number that follows the weights

    scratch = scratch / str(group.rank)
    train(encoder, losses, table, plan, dev=dev, folder=RunFolder(scratch), observer=recorder, group=group)
    return {
        "weights": {n: w.detach() for n, w in encoder.trainable().items()},
        "losses": [record.terms["loss"] for record in recorder.records],
        "evaluations": recorder.scores,
        "saved": (scratch / "state.pt").exists(),
    }


def everything(folder, scratch, group):
    found = {name: step(name, folder, ROWS, group, Cut(6)) for name in SYSTEMS}
    found |= {f"{name}, few": step(name, folder, FEW, group, Cut(1)) for name in ("promcse", "masked_lm")}
    found["twice"] = step("d2cse", folder, ROWS, group, Cut(1, 3))
    found["training"] = train_all(folder, scratch, group, PLAN)
    return found


SCRIPT = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from cse.training.group import ProcessGroup
from tests.training.test_group import everything
rank, size, folder, meeting, out = int(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
torch.save(everything(folder, out / "scratch", ProcessGroup(torch.device("cpu"))), out / f"{rank}.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_backbone_folder(tmp_path_factory.mktemp("group") / "bert", "bert", head=True)


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    return everything(folder, tmp_path_factory.mktemp("alone"), ALONE)


@pytest.fixture(scope="module", params=[2, 3])
def workers(folder, tmp_path_factory, request):
    """What each of several worker processes found."""
    out = tmp_path_factory.mktemp("workers")
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(request.param), folder, out / "meeting", out])
        for rank in range(request.param)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0] * request.param
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(request.param)]


@pytest.mark.parametrize("name", [*SYSTEMS, "promcse, few", "masked_lm, few", "twice"])
def test_shares_of_a_batch_equal_the_whole(alone, workers, name):
    expected = alone[name]
    encoded = [worker[name]["encoded"] for worker in workers]
    if expected["encoded"] < len(workers):
        assert encoded == [expected["encoded"]] * len(workers)
    else:
        assert sum(encoded) == expected["encoded"] and max(encoded) < expected["encoded"]
    for found in (worker[name] for worker in workers):
        assert found["terms"] == pytest.approx(expected["terms"], rel=1e-6, abs=1e-6)
        assert found["gradients"].keys() == expected["gradients"].keys()
        for weight, gradient in expected["gradients"].items():
            scale = max(gradient.abs().max().item(), 1.0)
            assert (found["gradients"][weight] - gradient).abs().max().item() <= 1e-6 * scale, weight
        for buffer, values in expected["memory"].items():
            torch.testing.assert_close(found["memory"][buffer], values, rtol=1e-5, atol=5e-6)


def test_a_training_shared_equals_a_training_alone(alone, workers):
    expected = alone["training"]
    for rank, found in enumerate(worker["training"] for worker in workers):
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert [place for place, _, _ in found["evaluations"]] == [0, 3, 5]
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-4, atol=1e-5)
        assert found["saved"] == (rank == 0)
    first, *others = (worker["training"]["weights"] for worker in workers)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_slices_are_dealt_from_either_end():
    class Four(Group):
        size = 4

    assert ALONE.deal(3) == [[0, 1, 2]]
    assert Four().deal(8) == [[0, 7], [1, 6], [2, 5], [3, 4]]


TALK = """
import json, sys
import torch, torch.distributed as dist
from cse.errors import CseError
from cse.training.group import ProcessGroup
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
group = ProcessGroup(torch.device("cpu"))
own = torch.arange(2.0 + rank).reshape(-1, 1).requires_grad_(True)  # 2 rows here, 3 there
joined = group.gather(own, [2, 3])
((rank + 1) * joined.square().sum()).backward()
print(json.dumps([joined.flatten().tolist(), own.grad.flatten().tolist()]))
print(json.dumps([group.any(rank == 1), group.from_first(lambda: rank)]))

def fail():
    raise CseError("dev: its own words")

def said(work):
    try:
        work()
    except Exception as error:
        return [type(error).__name__, str(error)]

print(json.dumps(said(lambda: group.from_first(fail))), flush=True)  # what the first alone does, the other waits for
if rank == 1:
    raise KeyError("a mistake in the code of one worker")
for wait in (lambda: group.any(False), lambda: group.average({"loss": own.sum()}), lambda: group.gather(own, [2, 3])):
    print(json.dumps(said(wait)[0]))
"""


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """What two workers print, line by line."""
    meeting = tmp_path_factory.mktemp("talk") / "meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TALK, str(rank), meeting],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [[json.loads(line) for line in lines.splitlines()] for lines in said]


def test_gather_carries_the_gradient_of_all_losses(talk):
    """Worker r's loss is (r + 1) * sum x^2, so each row's gradient is (1 + 2) * 2 x."""
    assert talk[0][0] == [[0, 1, 0, 1, 2], [0, 6]]
    assert talk[1][0] == [[0, 1, 0, 1, 2], [0, 6, 12]]
    assert talk[0][1] == talk[1][1] == [True, 0]


def test_an_error_of_one_worker_ends_the_others_at_once(talk):
    first, second = talk
    assert first[2] == ["CseError", "dev: its own words"]
    assert second[2:] == [["PeerLost", "the first worker failed: CseError: dev: its own words"]]
    assert first[3:] == ["PeerLost"] * 3
