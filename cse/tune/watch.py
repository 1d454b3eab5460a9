"""Show a sweep: a live table on a terminal, otherwise a line when a trial starts or ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cse.ray_session import WAIT_SECONDS, free_in_words, in_words
from cse.settings.spaces import Space
from cse.tune.job import METRIC, WORST, Job

_EVERY = 1.0  # seconds between updates of the table


_watching: Watch | None = None  # lets callbacks unpickled by a restored sweep find the terminal


def callback() -> Any:
    """Return a Ray Tune callback that notifies this process's watch; imports Ray lazily because it is slow."""
    from ray.tune import Callback

    class _Told(Callback):
        def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if _watching is not None:
                _watching.look([trial.status for trial in trials])

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _note(trial, "running")

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if result.get(METRIC) != WORST:
                _note(trial, "running", result)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result or {}
            ended = "failed" if last.get(METRIC) == WORST else "finished"
            shown = {} if ended == "failed" else last
            _note(trial, ended if last.get("percent") == 100 else "stopped", shown)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _note(trial, "failed")

        def __reduce__(self) -> tuple[Any, ...]:
            return callback, ()

    return _Told()


def _note(trial: Any, state: str, result: dict[str, Any] | None = None) -> None:
    if _watching is not None:
        _watching.note(trial, state, result)


class Watch:
    """Shows a sweep while it runs.

    Args:
        dashboard: address of Ray's dashboard; empty if there is none.
        gpus: that each trial takes.
    """

    def __init__(self, space: Space, job: Job, dashboard: str, gpus: float = 0.0) -> None:
        self.space, self.job, self.dashboard, self.gpus = space, job, dashboard, gpus
        self.trials: dict[str, dict[str, Any]] = {}
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False) if sys.stderr.isatty() else None
        self.shown = self.started = self.ran = 0.0

    def __enter__(self) -> Watch:
        global _watching
        _watching = self
        self.started = self.ran = time.monotonic()
        wanted = self.job.settings.tune.trials if self.space.search == "optuna" else len(self.space.grid())
        self.say(f"space {self.space.name}, {self.space.search}, {wanted} trials in {self.job.folder}")
        for dimension in self.space.dimensions:
            self.say(f"  {dimension}")
        if self.dashboard:
            self.say(f"dashboard: http://{self.dashboard} (log in with the token from `ray get-auth-token`)")
        self.say(f"TensorBoard: tensorboard --logdir {self.job.folder}")
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self._show(now=True)
            self.live.stop()

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def note(self, trial: Any, state: str, result: dict[str, Any] | None = None) -> None:
        """Record the state and result of a trial."""
        known = self.trials.setdefault(trial.trial_id, {"number": len(self.trials) + 1, "since": time.monotonic()})
        before = known.get("state")
        known |= {"state": state, "config": self.job.config_of(trial.config)}
        if result is not None:
            known |= {"score": result.get(METRIC), "percent": result.get("percent", 0)}
        known["seconds"] = time.monotonic() - known["since"]
        if self.live is not None:
            self._show()
        elif state != before:
            score = "" if known.get("score") is None else f": dev {known['score']:.2f} ({known['percent']} %)"
            values = ", ".join(f"{key} {_short(value)}" for key, value in known["config"].items())
            self.say(f"trial {known['number']} {state}, {values}{score}")

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

    def _show(self, now: bool = False) -> None:
        if self.live is not None and (now or time.monotonic() - self.shown >= _EVERY):
            self.shown = time.monotonic()
            self.live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        scores = [trial["score"] for trial in self.trials.values() if trial.get("score") is not None]
        best = max(scores, default=None)
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        title = f"{minutes}:{seconds:02d}" + ("" if best is None else f", best dev {best:.2f}")
        table = Table("trial", "state", *self.space.keys, "done", "dev", "time", title=title)
        for trial in self.trials.values():
            score = trial.get("score")
            table.add_row(
                str(trial["number"]),
                trial["state"],
                *(_short(value) for value in trial["config"].values()),
                f"{trial.get('percent', 0)} %",
                "" if score is None else f"{score:.2f}",
                f"{trial['seconds']:.0f} s",
                style="bold" if score is not None and score == best else None,
            )
        return table


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
