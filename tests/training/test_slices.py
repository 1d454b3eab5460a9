"""How a batch is cut, for speed, memory or workers, is not part of the objective: every system, slices of unequal size.

The reference is what the papers' code does: one worker, all rows in one slice, padded to the longest. Slices here have
unequal numbers of rows, and of other lengths, so that whatever a term averages over a slice shows. Below it gradient
caching: a batch that is encoded twice, slice by slice, with dropout on; and workers that share a batch: loss, gradients
and a whole training.
"""

import json
import subprocess
from itertools import combinations

import numpy as np
import pytest
import torch

from cse.losses.group import ALONE
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import cheapest_cuts, slices_of
from cse.training.state import RunFolder
from tests.parts import Cut, new_plan, train
from tests.training.helpers import Recorder, embed_rows, kept_bytes
from tests.training.systems import SYSTEMS, assert_same_step, make_system, take_step

ROWS = np.array([3, 17, 0, 9, 31, 5, 22])  # 14 sentences of two views, 21 of three
CUTS = (Cut(4, None), Cut(1, 4), Cut(3, 5))
CASES = [*((name, "bert") for name in SYSTEMS), ("d2cse", "roberta")]  # whose padding has another position


@pytest.mark.parametrize(("name", "family"), CASES)
def test_slices_are_not_part_of_the_objective(folders, name, family):
    whole = take_step(name, folders[family], ROWS, Cut(1, None))
    assert len(whole["slices"]) == 1 and whole["terms"]["loss"] > 0.01
    unequal = 0
    for cut in CUTS:
        found = take_step(name, folders[family], ROWS, cut)
        rows, lengths = zip(*found["slices"], strict=True)
        assert len(rows) > 2 and len(set(lengths)) > 1
        unequal += len(set(rows)) > 1
        assert_same_step(found, whole)
    assert unequal == len(CUTS)


LENGTHS = np.array([3, 3, 4, 5, 5, 5, 9, 9, 12, 30])


def price(cuts, cost):
    parts = np.split(LENGTHS, list(cuts))
    return sum(len(part) * part[-1] + cost for part in parts)


@pytest.mark.parametrize("cost", [0.0, 2.5, 7.0, 20.0, 80.0, 1000.0])
def test_no_other_way_to_cut_costs_less(cost):
    found = cheapest_cuts(LENGTHS, cost)
    ways = [way for count in range(len(LENGTHS)) for way in combinations(range(1, len(LENGTHS)), count)]
    assert price(found, cost) == pytest.approx(min(price(way, cost) for way in ways))
    assert found == sorted(set(found))


def test_number_of_slices():
    def of(sentences, workers, row_groups=None, mini_batch_size=None):
        return slices_of(TrainSettings(row_groups=row_groups, mini_batch_size=mini_batch_size), sentences, workers)

    assert of(100, 1) is None, "as many as cost least"
    assert of(100, 3) == 6, "equal shares for the workers"
    assert of(100, 1, mini_batch_size=30) == 4, "no more than fit"
    assert of(100, 3, mini_batch_size=30) == 6
    assert of(100, 2, row_groups=5) == 6


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_step_in_bf16_is_near_one_in_float32(folder, name):
    exact, rounded = (take_step(name, folder, ROWS, Cut(2, None), precision=way) for way in ("fp32", "bf16"))
    for term, value in exact["terms"].items():
        assert rounded["terms"][term] == pytest.approx(value, rel=0.03, abs=0.01), term
    both = [torch.cat([gradient.flatten() for gradient in way["gradients"].values()]) for way in (exact, rounded)]
    assert torch.cosine_similarity(*both, dim=0) > 0.95


MORE_ROWS = np.array([3, 17, 0, 9, 31, 5, 22, 8, 14, 30])


def direct_and_cached(name, folder, **how):
    """A step of four slices with dropout, and one that encodes each of four twice."""
    direct = take_step(name, folder, MORE_ROWS, Cut(4, None), dropout=0.1, **how)
    sentences = sum(rows for rows, _ in direct["slices"])
    cached = take_step(name, folder, MORE_ROWS, Cut(1, -(-sentences // 4)), dropout=0.1, **how)
    assert cached["passes"] > direct["passes"]
    return direct, cached


@pytest.mark.parametrize("name", SYSTEMS)
def test_two_passes_give_the_gradient_of_one_with_dropout_on(folder, name):
    direct, cached = direct_and_cached(name, folder)
    assert_same_step(cached, direct)
    still = take_step(name, folder, MORE_ROWS, Cut(4, None))
    assert still["terms"]["loss"] != pytest.approx(direct["terms"]["loss"], rel=1e-3), "dropout was off"


def test_augmented_copies_and_bf16(folder):
    augment = AugmentSettings(repeat_words=0.3, shuffle_tokens="paper", cut_features=0.2)
    direct, cached = direct_and_cached("promcse", folder, augment=augment)
    assert_same_step(cached, direct)
    direct, cached = direct_and_cached("d2cse", folder, precision="bf16")
    assert_same_step(cached, direct, 5e-3)  # states and their gradients are rounded to 8 bits, in another order


def test_what_is_kept_between_the_passes_does_not_grow_with_the_layers(folder):
    def kept(cut):
        encoder, losses, table = make_system("promcse", folder, dropout=0.1)
        return kept_bytes(lambda: losses(embed_rows(encoder, table, MORE_ROWS, new_plan(cut=cut))))

    assert kept(Cut(1, 5)) < kept(Cut(4, None)) / 10


# ---- workers, real processes over gloo ------------------------------------------------------------------------------

FEW = np.array([6])  # of an epoch's last rows there may be fewer than workers
SHARES = (*SYSTEMS, "promcse, few", "masked_lm, few", "d2cse, twice", "masked_lm, twice")
# one worker encodes all rows in one slice; two have 4 slices, three have 3, of unequal numbers of rows and lengths
ALL, SHARED = Cut(1, None), Cut(3, None)
PLAN = new_plan(learning_rate=0.02, batch_size=8, epochs=1, cut=SHARED, eval_every=3, save_seconds=0, seed=5)


class Watched(RunFolder):
    """Notes each time that a worker saves, and whether it has the state."""

    def _write(self, state):
        self.saves = [*getattr(self, "saves", []), state is not None]
        super()._write(state)


def train_all(folder, scratch, group, plan, *, scored=True):
    encoder, losses, table = make_system("hinge", folder, dropout=0.0)
    with torch.no_grad():
        encoder.prompt.table.add_(0.1 * group.rank)  # all start where the first worker does
    recorder, steps = Recorder(), []
    losses.register_forward_pre_hook(lambda _, given: steps.append((len(given[0].slices), torch.initial_seed())))

    def dev():
        assert group.rank == 0, "the others wait for the first one's score"
        return float(encoder.prompt.table.detach().sum())  # any number that follows the weights

    saved = Watched(scratch / str(group.rank))
    train(encoder, losses, table, plan, dev=dev if scored else None, folder=saved, observer=recorder, group=group)
    return {
        "weights": {n: w.detach() for n, w in encoder.trainable().items()},
        "losses": [record.terms["loss"] for record in recorder.records],
        "evaluations": recorder.scores,
        "saved": (saved.path / "state.pt").exists(),
        "saves": saved.saves,
        "slices": [slices for slices, _ in steps],
        "seeds": [seed for _, seed in steps],
    }


def everything(folder, scratch, group):
    cuts = {"": SHARED, "few": ALL, "twice": Cut(1, 5)}
    found = {}
    for case in SHARES:
        name, _, how = case.partition(", ")
        cut = ALL if group is ALONE else cuts[how]
        found[case] = take_step(name, folder, FEW if how == "few" else ROWS, cut, group)
    found["training"] = train_all(folder, scratch, group, PLAN)
    found["last"] = train_all(folder, scratch / "last", group, PLAN, scored=False)["weights"]
    return found


SCRIPT = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from cse.losses.group import Group
from tests.training.test_slices import everything
rank, size, folder, meeting, out = int(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
torch.save(everything(folder, out / "scratch", Group.joined(torch.device("cpu"))), out / f"{rank}.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    return everything(folder, tmp_path_factory.mktemp("alone"), ALONE)


@pytest.fixture(scope="module")
def workers(folder, tmp_path_factory, forking_python):
    """What each of three worker processes found."""
    out = tmp_path_factory.mktemp("workers")
    processes = [
        subprocess.Popen([forking_python, "-c", SCRIPT, str(rank), "3", folder, out / "meeting", out])
        for rank in range(3)
    ]
    assert [process.wait(timeout=200) for process in processes] == [0] * 3
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(3)]


@pytest.mark.parametrize("name", SHARES)
def test_shares_of_a_batch_equal_the_whole(alone, workers, name):
    expected = alone[name]
    encoded = [sum(rows for rows, _ in worker[name]["slices"]) for worker in workers]
    sentences = sum(rows for rows, _ in expected["slices"])
    if sentences < len(workers):
        assert encoded == [sentences] * len(workers)
    else:
        assert sum(encoded) == sentences and max(encoded) < sentences
        assert len({length for worker in workers for _, length in worker[name]["slices"]}) > 1 or "few" in name
    for worker in workers:
        assert_same_step(worker[name], expected)


def test_a_training_shared_equals_a_training_alone(alone, workers):
    expected = alone["training"]
    for rank, found in enumerate(worker["training"] for worker in workers):
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert [place for place, _, _ in found["evaluations"]] == [0, 3, 5]
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-4, atol=1e-5)
        assert found["saved"] == (rank == 0)
        assert found["saves"] == [rank == 0], "all save at the same steps: here at the fifth, when they meet"
        assert found["evaluations"] == workers[0]["training"]["evaluations"]
        assert found["slices"] == [1] * 5, "it did more than its share"
    seeds = [seed for worker in workers for seed in worker["training"]["seeds"]]
    assert seeds[:5] == expected["seeds"]
    assert len(set(seeds)) == 5 * len(workers), "workers or steps share their dropout"
    torch.testing.assert_close(workers[0]["last"], alone["last"], rtol=1e-4, atol=1e-5)  # without dev pairs
    for kept in ([worker["training"]["weights"] for worker in workers], [worker["last"] for worker in workers]):
        assert all(torch.equal(kept[0][name], other[name]) for other in kept[1:] for name in other)


def test_a_worker_alone_divides_by_its_own_tokens_and_by_none_of_nothing():
    total = torch.tensor(6.0)
    assert [ALONE.over_all(total, torch.tensor(count)).item() for count in (4.0, 1.0, 0.0)] == [1.5, 6.0, 6.0]
    assert ALONE.average({"loss": torch.tensor(2.5)}) == {"loss": 2.5}
    assert ALONE.any(True, False) == [True, False]


TALK = """
import json, sys
import torch, torch.distributed as dist
from cse.errors import CseError
from cse.losses.group import Group
rank, meeting = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
group = Group.joined(torch.device("cpu"))
own = torch.arange(2.0 + rank).reshape(-1, 1).requires_grad_(True)  # 2 rows here, 3 there
joined = group.gather(own, [2, 3])
((rank + 1) * joined.square().sum()).backward()
group.average_gradients({"idle": torch.nn.Parameter(torch.zeros(7))})  # where nothing has a gradient
nothing = group.over_all(torch.tensor(0.0), torch.tensor(0.0)).item()
means = group.average({"x": torch.tensor(float(rank)), "y": torch.tensor(3.0 * rank, dtype=torch.bfloat16)})
told = [*group.any(rank == 1), group.from_first(lambda: rank), nothing, means]
print(json.dumps([joined.flatten().tolist(), own.grad.flatten().tolist(), told]))

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


def test_gather_carries_the_gradient_of_all_losses_and_an_error_ends_the_others_at_once(tmp_path, forking_python):
    """Worker r's loss is (r + 1) * sum x^2, so each row's gradient is (1 + 2) * 2 x."""
    command = [forking_python, "-c", TALK]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    processes = [subprocess.Popen([*command, str(rank), tmp_path / "meeting"], **options) for rank in range(2)]
    try:
        told = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    first, second = ([json.loads(line) for line in lines.splitlines()] for lines in told)
    same = [True, 0, 0.0, {"x": 0.5, "y": 1.5}]
    assert first[:2] == [[[0, 1, 0, 1, 2], [0, 6], same], ["CseError", "dev: its own words"]]
    lost = ["PeerLost", "the first worker failed: CseError: dev: its own words"]
    assert second == [[[0, 1, 0, 1, 2], [0, 6, 12], same], lost]
    assert first[2:] == ["PeerLost"] * 3
