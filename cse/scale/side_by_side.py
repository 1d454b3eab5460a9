"""Run jobs side by side with Ray; a lost worker costs no job its saved work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cse.runtime.providers import usable_cpus
from cse.scale.session import ray_session

MOST_LOSSES = 2  # lost workers before a job is given up


class Ended(NamedTuple):
    """A job that ended: its name, what ``run`` returned, and why it was given up (empty if it was not)."""

    name: str
    result: Any
    lost: str


def side_by_side(
    worker: type,
    given: Callable[[int], Sequence[Any]],
    names: Sequence[str],
    *,
    at_once: int | None,
    afresh: bool = False,
) -> Iterator[Ended]:
    """Give each job to the next idle worker and yield it as it ends.

    If a worker is lost, its job starts again on a new one, and resumes if it saves its state.

    Args:
        worker: class whose method ``run`` takes the name of a job; it runs in a process of its own.
        given: returns the arguments of the class, given the CPU threads of each worker.
        names: of the jobs, in their order.
        at_once: workers; None: one for each CPU, or for each GPU if there are any.
        afresh: whether each job gets a new process; otherwise a worker keeps what it loaded, and the memory of its
            largest job.
    """
    with ray_session() as ray:
        from ray.exceptions import OutOfMemoryError, RayActorError

        resources = ray.cluster_resources()
        cpus, gpus = int(resources.get("CPU", usable_cpus())), float(resources.get("GPU", 0))
        workers = max(1, min(at_once or int(gpus) or cpus, len(names), cpus))
        each = gpus / workers
        options = {"num_cpus": cpus // workers, "num_gpus": each if each <= 1 else int(each)}  # Ray's rule for shares
        make = ray.remote(**options)(worker)
        arguments = given(cpus // workers)
        idle = [make.remote(*arguments) for _ in range(workers)]
        todo, losses = list(names), dict.fromkeys(names, 0)
        busy: dict[Any, tuple[str, Any]] = {}
        while todo or busy:
            while todo and idle:
                name, free = todo.pop(0), idle.pop()
                busy[free.run.remote(name)] = name, free
            (done,), _ = ray.wait(list(busy), num_returns=1)
            name, free = busy.pop(done)
            try:
                result = ray.get(done)
            except (RayActorError, OutOfMemoryError):
                idle.append(make.remote(*arguments))  # not restarted by Ray, which would count one job's losses for all
                losses[name] += 1
                if losses[name] > MOST_LOSSES:
                    reason = f"its worker died {losses[name]} times, killed externally or out of memory"
                    yield Ended(name, None, reason)
                else:
                    todo.insert(0, name)
            else:
                if afresh and todo:
                    ray.kill(free)
                    free = make.remote(*arguments)
                idle.append(free)
                yield Ended(name, result, "")
