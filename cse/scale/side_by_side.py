"""Run jobs side by side with Ray; a lost worker costs no job its saved work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import click

from cse.errors import CseError, error_line
from cse.scale.machines import WAIT_SECONDS, cpus_each, free_in_words, gpus_each, in_words, listed_machines, with_more

MOST_LOSSES = 2  # lost workers before a job is given up


class Ended(NamedTuple):
    """A job that ended: its name, what ``run`` returned, and why it was given up (empty if it was not)."""

    name: Any
    result: Any
    lost: str


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
        ray: connected.
        at_once: most workers; None: one for each CPU, or for each GPU if they get any.
        jobs: that there are for them.
        gpu: whether they get GPUs; None: if there are any.

    Raises:
        CseError: no machine can hold a worker.
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


def share_out(
    ray: Any,
    start: Callable[[], Any],
    jobs: Iterable[tuple[Any, Sequence[Any]]],
    crew: Crew,
    *,
    afresh: bool = False,
    most_losses: int = MOST_LOSSES,
    say: Callable[[str], object] = lambda line: click.echo(line, err=True),
) -> Iterator[Ended]:
    """Give each job to the next idle worker and yield it as it ends.

    If a worker is lost, its job starts again on a new one, and resumes if it saves its state. While workers find no
    place, a line every half minute says what they wait for.

    Args:
        ray: connected.
        start: starts a worker, an actor with a method ``run``.
        jobs: names with the arguments of ``run``, taken one by one as workers are idle.
        crew: number of workers, and what each takes.
        afresh: whether each job gets a new process.
        most_losses: lost workers before a job is given up.
        say: prints a line.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError

    staff = _Staff(ray, start, crew, most_losses, say)
    todo, losses = iter(jobs), dict[Any, int]()
    again: list[tuple[Any, Sequence[Any]]] = []
    busy: dict[Any, tuple[tuple[Any, Sequence[Any]], Any]] = {}
    ahead = next(todo, None)  # made while the workers are busy
    while busy or again or ahead:
        while staff.idle and (job := again.pop() if again else ahead):
            free = staff.idle.pop()
            busy[free.run.remote(*job[1])] = job, free
            ahead = next(todo, None) if job is ahead else ahead
        for reply in staff.replies(busy):
            job, free = busy.pop(reply)
            try:
                result = ray.get(reply)
            except (RayActorError, OutOfMemoryError):
                staff.hire()  # not restarted by Ray, which would count one job's losses for all
                losses[job[0]] = losses.get(job[0], 0) + 1
                if losses[job[0]] > most_losses:
                    reason = f"its worker died {losses[job[0]]} times, killed externally or out of memory"
                    yield Ended(job[0], None, reason)
                else:
                    again.append(job)
                continue
            if afresh and (again or ahead):
                ray.kill(free)
                staff.hire()
            else:
                staff.idle.append(free)
            yield Ended(job[0], result, "")


class _Staff:
    """The workers: those that start, and those that have started and are idle. Says what the former wait for."""

    def __init__(
        self, ray: Any, start: Callable[[], Any], crew: Crew, most_losses: int, say: Callable[[str], object]
    ) -> None:
        self._ray, self._start, self._crew, self._most_losses, self._say = ray, start, crew, most_losses, say
        self.idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._died = 0  # in a row, while they started
        self._said = time.monotonic()
        for _ in range(crew.workers):
            self.hire()

    def hire(self) -> None:
        """Start a worker; it is idle once it has a place."""
        worker = self._start()
        self._starting[worker.__ray_ready__.remote()] = worker

    def replies(self, busy: Iterable[Any]) -> list[Any]:
        """Return a reply of a worker that has done its job, if there is one before the next line or start.

        Raises:
            CseError: workers die as they start.
        """
        done, _ = self._ray.wait([*self._starting, *busy], num_returns=1, timeout=WAIT_SECONDS)
        for reply in done:
            if reply in self._starting:
                self._settle(reply, self._starting.pop(reply))
        now = time.monotonic()
        if self._starting and now - self._said >= WAIT_SECONDS:
            self._said = now
            waiting = f"{len(self._starting)} of {self._crew.workers} workers wait for {self._crew} of one machine each"
            self._say(f"{waiting}; {free_in_words(self._ray)}")
        return [reply for reply in done if reply in set(busy)]

    def _settle(self, reply: Any, worker: Any) -> None:
        try:
            self._ray.get(reply)
        except self._ray.exceptions.RayError as error:
            self._died += 1
            if self._died > self._most_losses:
                why = error_line(error)[:200]
                raise CseError(f"{self._died} workers died as they started, the last one so: {why}") from None
            self.hire()
        else:
            self._died = 0
            self.idle.append(worker)
