"""What workers on other machines tell the command that started them: their progress, and the first error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from cse.errors import CseError, error_line
from cse.process import watching
from cse.scale.machines import WAIT_SECONDS
from cse.training.observers import Observer, StepRecord

GROUP, LOST = "group", "lost"
_START, _STEP, _EVALUATED = "start", "step", "evaluated"


class Failure(NamedTuple):
    """The error that ended a run, in a user's words, and its traceback."""

    words: str
    trace: str


class Relay:
    """Holds what workers tell until the command asks; a Ray actor beside the command, so no disk is shared."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.failure: Failure | None = None
        self.refusal: str | None = None

    def tell(self, *event: Any) -> str | None:
        """Take an event, and return why the command wants no more of them, if so."""
        self.events.append(event)
        return self.refusal

    def fail(self, failure: Failure) -> None:
        """Take an error; the first counts, since the others follow from it."""
        self.failure = self.failure or failure

    def refuse(self, words: str) -> None:
        """Make the workers stop at the next event: the command cannot note them."""
        self.refusal = words

    def take(self) -> list[tuple[Any, ...]]:
        """Return the events since the last time."""
        events, self.events = self.events, []
        return events

    def failed(self) -> Failure | None:
        """Return the first error, if there is one."""
        return self.failure


def start_relay(ray: Any) -> Any:
    """Start a relay on this machine, which takes no CPU of the workers."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Relay).remote()


class Teller(Observer):
    """Tells the relay what an observer of the first worker sees; the command knows itself when all is over."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay

    def start(self, done: int, steps: int) -> None:
        """Tell it."""
        self._tell(_START, done, steps)

    def step(self, record: StepRecord) -> None:
        """Tell it."""
        self._tell(_STEP, record)

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Tell it."""
        self._tell(_EVALUATED, step, score, best)

    def _tell(self, *event: Any) -> None:
        import ray

        if refusal := ray.get(self.relay.tell.remote(*event)):
            raise CseError(refusal)


@contextmanager
def followed(
    take: Callable[[], list[tuple[Any, ...]]],
    refuse: Callable[[str], object],
    observers: Callable[[], Observer],
    waits: Callable[[], str],
) -> Iterator[None]:
    """Pass on what workers tell to observers here; while no worker runs, say every so often what for.

    Args:
        refuse: the relay's; called with an error of an observer.
        observers: makes those of one attempt; workers that start again have new ones.
    """
    since: float | None = time.monotonic()  # when the workers began to wait, or the last line about it
    watch, refused = Observer(), False

    def show() -> None:
        nonlocal since
        for name, *values in take():
            since = time.monotonic() if name == LOST else None
            if not refused:
                note(name, values)
        if since is not None and time.monotonic() - since >= WAIT_SECONDS:
            since = time.monotonic()
            click.echo(waits(), err=True)

    def note(name: str, values: list[Any]) -> None:
        nonlocal watch, refused
        try:
            if name == _START:
                watch.close()
                watch = observers()
            if name in (GROUP, LOST):
                click.echo(values[0], err=True)
            else:
                getattr(watch, name)(*values)
        except (CseError, OSError) as error:
            refused = True
            refuse(error_line(error))

    try:
        with watching(show, 0.5):
            yield
    finally:
        show()
        watch.close()
