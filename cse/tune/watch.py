"""What a sweep says while it runs: a line when a trial starts or ends, and what trials wait for if none runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from cse.ray_session import WAIT_SECONDS, free_in_words, in_words
from cse.tune.job import METRIC, SETTING, WORST, Job, drawn_of
from cse.tune.spaces import SEED, named

_watching: Watch | None = None  # lets callbacks unpickled by a restored search find the terminal


def callback() -> Any:
    """Return a Ray Tune callback that tells this process's watch; imports Ray lazily because it is slow."""
    from ray.tune import Callback

    class _Told(Callback):
        def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if _watching is not None:
                _watching.look([trial.status for trial in trials])

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _note(trial, "running")

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result or {}
            if last.get(METRIC) == WORST:
                _note(trial, "failed")
            else:
                percent = last.get("percent", 0)
                ended = "finished" if percent == 100 else "stopped"
                _note(trial, ended, f": dev {last[METRIC]:.2f} ({percent} %)" if METRIC in last else "")

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _note(trial, "failed")

        def __reduce__(self) -> tuple[Any, ...]:
            return callback, ()

    return _Told()


def _note(trial: Any, state: str, result: str = "") -> None:
    if _watching is not None:
        _watching.note(trial, state, result)


class Watch:
    """Says what becomes of the trials of a search.

    Args:
        count: of trials.
        gpus: that each takes.
    """

    def __init__(self, job: Job, count: int, gpus: float = 0.0) -> None:
        global _watching
        _watching = self
        self.job, self.count, self.gpus = job, count, gpus
        self.ended = 0
        self.ran = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line."""
        click.echo(line, err=True)

    def note(self, trial: Any, state: str, result: str = "") -> None:
        """Say what became of a trial."""
        drawn = drawn_of(trial.config)
        called = drawn.get(SETTING) or named(self.job.config_of(drawn))
        if SEED in drawn:
            called += f", seed {drawn[SEED]}"
        self.ended += state != "running"
        self.say(f"{state}, {called}{result}" + (f"; {self.ended} of {self.count}" if state != "running" else ""))

    def look(self, states: Sequence[str]) -> None:
        """Say every so often what the trials wait for while none of them runs.

        Args:
            states: of Ray Tune's trials, such as ``PENDING`` and ``RUNNING``.
        """
        now = time.monotonic()
        if "PENDING" not in states or "RUNNING" in states:
            self.ran = now
        elif now - self.ran >= WAIT_SECONDS:
            self.ran = now
            import ray

            wanted = in_words(self.job.threads, self.gpus)
            self.say(f"tune: no trial runs; each waits for {wanted} of one machine; {free_in_words(ray)}")
