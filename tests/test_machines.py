"""Workers find a place on unequal machines, and what cannot be met is one line."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.core.generated.autoscaler_pb2 import ClusterConfig

from cse.ray_session import Machine, cpus_each, gpus_each, places, with_more
from cse.training.workers import _share
from tests.parts import refusal
from tests.waiting import wait_for


def of(*sizes):
    """Machines of so many CPUs, or of CPUs and GPUs."""
    return [Machine(*map(float, size)) if isinstance(size, tuple) else Machine(float(size), 0.0) for size in sizes]


def ray_of(*sizes, groups=()):
    nodes = [{"Alive": True, "Resources": {"CPU": one.cpus, "GPU": one.gpus}} for one in of(*sizes)]
    config = ClusterConfig() if groups else None
    for cpus, most in groups:
        group = config.node_group_configs.add(max_count=most)
        group.resources["CPU"] = cpus
    state = SimpleNamespace(get_cluster_config=lambda: config)
    return SimpleNamespace(
        nodes=lambda: [*nodes, {"Alive": False, "Resources": {"CPU": 64.0}}],
        _private=SimpleNamespace(state=SimpleNamespace(state=state)),
    )


def test_a_share_of_the_smallest_machine_that_can_hold_a_worker():
    assert cpus_each(of(0, 4, 4), 2, 0) == 4, "a head without CPUs"
    assert cpus_each(of(16, 2), 2, 0) == 2, "when the large one is lost, the small one goes on"
    assert cpus_each(of((8, 1), (2, 1)), 2, 1) == 2
    assert cpus_each(of((8, 2), (64, 0)), 2, 1) == 4, "a machine without a GPU holds none of them"
    assert cpus_each(of((1, 4)), 4, 1) == 0, "one CPU for four GPUs"


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=5), st.integers(1, 12))
def test_all_find_a_place_on_every_machine_and_none_could_have_more(sizes, workers):
    there = of(*sizes)
    cpus = cpus_each(there, workers)
    if not cpus:
        assert sum(sizes) < workers
        return
    assert places(there, cpus) >= workers
    assert all(machine.places(cpus, 0) for machine in there if machine.cpus)
    larger = cpus + 1
    assert places(there, larger) < workers or any(0 < machine.cpus < larger for machine in there)


def test_gpus_are_whole_or_a_part_that_fits():
    assert [gpus_each(of((8, 2), (8, 1)), workers) for workers in (1, 3, 4, 7)] == [1, 1, 0.5, 0.3333]
    assert gpus_each(of((0, 8), 4), 1) == 0, "no CPU beside them"
    assert places(of((8, 1)), 1, 0.3333) == 3


def test_training_asks_for_what_a_machine_has():
    assert _share(of(2, 2, 2), 2, gpus=False) == {"CPU": 2}
    assert _share(of((8, 1), (2, 1)), 2, gpus=True) == {"GPU": 1, "CPU": 2}
    assert refusal(_share, of((4, 1), (4, 1), 0), 3, gpus=True) == (
        "train.workers: 3 workers, but there are places for 2: each takes 1 CPU and 1 GPU of one machine, and Ray has "
        "2 machines of 4 CPUs and 1 GPU, 1 of 0 CPUs; give at most 2"
    )


def test_machines_that_an_autoscaler_may_add_count():
    assert with_more(ray_of(0, 4, groups=[(4, 3)])) == of(0, 4, 4, 4)
    assert len(with_more(ray_of(0, groups=[(4, -1)]))) == 1001, "no limit"


STARTS = """
import time
from cse.ray_session import ray_session
with ray_session(dashboard=True):
    time.sleep(60)
"""


def of_session(pid):
    """The processes of the private Ray instance of a process."""
    named = f"/cse-ray-{pid}-"
    found = [each for each in psutil.process_iter(["cmdline"]) if named in " ".join(each.info["cmdline"] or ())]
    return [" ".join(each.info["cmdline"])[:200] for each in found if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gcs_server", "raylet/raylet", "agent"])
def test_sigterm_while_ray_starts_ends_all_that_was_started(part):
    process = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(part in each for each in of_session(process.pid)) or process.poll() is not None)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert of_session(process.pid) == []
