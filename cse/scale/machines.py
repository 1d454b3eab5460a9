"""What each machine of the cluster has, and the share of it that every worker of a job can get.

Ray places a worker on one machine as a whole: the sum over the cluster says nothing about what fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cse.errors import CseError

WAIT_SECONDS = 30.0  # between lines that say what a job waits for
_NEARLY = 1e-6  # shares of a GPU are rounded
_UNLIMITED = 1000  # machines of a kind


class Machine(NamedTuple):
    """CPUs and GPUs of a machine, whether they are free or not."""

    cpus: float
    gpus: float

    def places(self, cpus: float, gpus: float) -> int:
        """Return how many workers that take so much it can hold."""
        by_gpu = int(self.gpus / gpus + _NEARLY) if gpus else None
        by_cpu = int(self.cpus / cpus + _NEARLY)
        return by_cpu if by_gpu is None else min(by_cpu, by_gpu)


def machines(ray: Any) -> list[Machine]:
    """Return the machines of the connected cluster."""
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [_machine(one) for one in there]


def with_more(ray: Any) -> list[Machine]:
    """Return the machines of the connected cluster, and those that its autoscaler may add."""
    found = machines(ray)
    config = ray._private.state.state.get_cluster_config()
    for group in config.node_group_configs if config else ():
        kind = _machine(dict(group.resources))
        most = _UNLIMITED if group.max_count < 0 else group.max_count
        found += [kind] * (most - found.count(kind))
    return found


def _machine(resources: Mapping[str, float]) -> Machine:
    return Machine(float(resources.get("CPU", 0)), float(resources.get("GPU", 0)))


def places(there: Sequence[Machine], cpus: float, gpus: float = 0.0) -> int:
    """Return how many workers that take so much find a place."""
    return sum(machine.places(cpus, gpus) for machine in there)


def cpus_each(there: Sequence[Machine], workers: int, gpus: float = 0.0) -> int:
    """Return the most CPUs that each worker can have, 0 if some would find no place.

    Every machine that can hold a worker at all can hold one of this size: when a larger machine is lost, the others
    go on.

    Args:
        workers: that must find a place at the same time.
        gpus: that each takes.
    """
    smallest = min((int(machine.cpus) for machine in there if machine.places(1, gpus)), default=0)
    return next((cpus for cpus in range(smallest, 0, -1) if places(there, cpus, gpus) >= workers), 0)


def gpus_each(there: Sequence[Machine], workers: int) -> float:
    """Return each worker's share of the GPUs: one, or a part that Ray can count; 0 if there is none."""
    gpus = sum(int(machine.gpus) for machine in there if machine.cpus >= 1)
    return 0.0 if not gpus else int(10_000 / max(1, -(-workers // gpus))) / 10_000


def in_words(cpus: float, gpus: float = 0.0) -> str:
    """Return an amount in words: ``2 CPUs and 1 GPU``."""
    parts = [(cpus, "CPU")] + ([(gpus, "GPU")] if gpus else [])
    return " and ".join(f"{count:g} {kind}{'' if count == 1 else 's'}" for count, kind in parts)


def listed_machines(there: Sequence[Machine]) -> str:
    """Return in words what machines there are: ``2 machines of 2 CPUs, 1 of 8 CPUs and 1 GPU``."""
    if not there:
        return "no machine"
    (kind, count), *others = Counter(there).most_common()
    first = f"{count} machine{'' if count == 1 else 's'} of {in_words(*kind)}"
    return ", ".join([first, *(f"{count} of {in_words(*kind)}" for kind, count in others)])


def free_in_words(ray: Any) -> str:
    """Return in words what the cluster has and how much of it nobody holds."""
    free = ray.available_resources()
    return (
        f"Ray has {listed_machines(machines(ray))}; {in_words(free.get('CPU', 0), free.get('GPU', 0))} in all are free"
    )


class Crew(NamedTuple):
    """How many workers there are, and what each takes of its machine."""

    workers: int
    cpus: int
    gpus: float = 0.0

    def __str__(self) -> str:
        return in_words(self.cpus, self.gpus)


def largest_crew(ray: Any, at_once: int | None, jobs: int, *, gpu: bool | None = None) -> Crew:
    """Return as many workers as find a place on the machines, and the share of each.

    Args:
        at_once: most workers; None: one for each CPU, or for each GPU if they get any.
        gpu: whether they get GPUs; None: if there are any.
    """
    there = with_more(ray)
    gpu = gpus_each(there, 1) > 0 if gpu is None else gpu
    wanted = at_once or int(sum(machine.gpus if gpu else machine.cpus for machine in there))
    for workers in range(min(wanted, jobs), 0, -1):
        gpus = gpus_each(there, workers) if gpu else 0.0
        if cpus := cpus_each(there, workers, gpus):
            return Crew(workers, cpus, gpus)
    least = in_words(1, 1 if gpu else 0)
    raise CseError(f"no place for a worker, which takes {least} of one machine: Ray has {listed_machines(there)}")
