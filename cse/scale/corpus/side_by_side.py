"""Run jobs side by side with Ray; a lost worker costs no job its saved work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click

from cse.errors import CseError, error_line
from cse.ray_session import WAIT_SECONDS, Crew, free_in_words

MOST_LOSSES = 2  # lost workers before a job is given up


class Ended(NamedTuple):
    """A job that ended: its name, what ``run`` returned, and why it was given up (empty if it was not)."""

    name: Any
    result: Any
    lost: str


def share_out(
    ray: Any,
    start: Callable[[], Any],
    jobs: Iterable[tuple[Any, Sequence[Any]]],
    crew: Crew,
    *,
    each: int = 1,
    afresh: bool = False,
    most_losses: int = MOST_LOSSES,
    say: Callable[[str], object] = lambda line: click.echo(line, err=True),
) -> Iterator[Ended]:
    """Give each job to the least busy worker and yield it as it ends.

    If a worker is lost, its jobs start again on new ones, and resume if they save their state. Each then has a worker
    to itself, so that none is given up for what another did. While workers find no place, a line every half minute
    says what they wait for.

    Args:
        start: starts a worker, an actor with a method ``run``.
        jobs: names with the arguments of ``run``, taken one by one as workers have room.
        crew: number of workers, and what each takes.
        each: jobs that a worker has at once; above 1, its ``run`` is called by as many threads.
        afresh: whether each job gets a new process.
        most_losses: lost workers before a job is given up.
    """
    from ray.exceptions import OutOfMemoryError, RayActorError

    staff = _Staff(ray, start, crew, most_losses, say)
    todo, losses = iter(jobs), dict[Any, int]()
    again: list[tuple[Any, Sequence[Any]]] = []
    busy: dict[Any, tuple[tuple[Any, Sequence[Any]], _Worker]] = {}
    ahead = next(todo, None)  # made while the workers are busy
    while busy or again or ahead:
        while worker := staff.least_busy(each):
            if again and not worker.jobs:
                job, worker.alone = again.pop(0), True
            elif ahead:
                job, ahead = ahead, None
            else:
                break
            worker.jobs += 1
            busy[worker.actor.run.remote(*job[1])] = job, worker
            ahead = ahead or next(todo, None)
        for reply in staff.replies(busy):
            job, worker = busy.pop(reply)
            worker.jobs, worker.alone = worker.jobs - 1, False
            try:
                result = ray.get(reply)
            except (RayActorError, OutOfMemoryError):
                staff.replace(worker)  # not restarted by Ray, which would count one job's losses for all
                losses[job[0]] = losses.get(job[0], 0) + 1
                if losses[job[0]] > most_losses:
                    reason = f"its worker died {losses[job[0]]} times, killed externally or out of memory"
                    yield Ended(job[0], None, reason)
                else:
                    again.append(job)
                continue
            if afresh and (again or ahead):
                ray.kill(worker.actor)
                staff.replace(worker)
            yield Ended(job[0], result, "")


@dataclass(eq=False)
class _Worker:
    """A worker that has started: how many jobs it has, and whether it takes no other beside the one it has."""

    actor: Any
    jobs: int = 0
    alone: bool = False


class _Staff:
    """The workers: those that start, and those that have started. Says what the former wait for."""

    def __init__(
        self, ray: Any, start: Callable[[], Any], crew: Crew, most_losses: int, say: Callable[[str], object]
    ) -> None:
        self._ray, self._start, self._crew, self._most_losses, self._say = ray, start, crew, most_losses, say
        self._started: list[_Worker] = []
        self._starting: dict[Any, Any] = {}
        self._died = 0  # in a row, while they started
        self._said = time.monotonic()
        for _ in range(crew.workers):
            self.hire()

    def hire(self) -> None:
        """Start a worker, which takes a while where it finds no place."""
        worker = self._start()
        self._starting[worker.__ray_ready__.remote()] = worker

    def least_busy(self, most: int) -> _Worker | None:
        """Return the worker with the fewest jobs, of those that take more."""
        free = [worker for worker in self._started if worker.jobs < most and not worker.alone]
        return min(free, key=lambda worker: worker.jobs, default=None)

    def replace(self, worker: _Worker) -> None:
        """Start another for one that has ended, the first time this is said of it."""
        if worker in self._started:
            self._started.remove(worker)
            self.hire()

    def replies(self, busy: Iterable[Any]) -> list[Any]:
        """Return a reply of a worker that has done its job, if there is one before the next line or start."""
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
            self._started.append(_Worker(worker))
