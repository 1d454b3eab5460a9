"""What a sweep says while none of its trials runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cse.tune import watch as module
from cse.tune.watch import Watch, callback


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(module, "free_in_words", lambda ray: "Ray has 1 machine of 2 CPUs; 0 CPUs in all are free")
    shown = Watch(SimpleNamespace(threads=2), 4, gpus=0.5)
    shown.lines, shown.ran = [], 0.0
    monkeypatch.setattr(shown, "say", shown.lines.append)
    monkeypatch.setattr(module, "_watching", shown)
    return shown


def step(*states):
    callback().on_step_begin(0, [SimpleNamespace(status=state) for state in states])


def test_a_line_says_what_waiting_trials_wait_for(watch, monkeypatch):
    for now, states in (
        (29, ("PENDING", "PENDING")),
        (31, ("PENDING", "PENDING")),  # the first line
        (50, ("PENDING",)),
        (62, ("TERMINATED", "PENDING")),  # the second
        (93, ("RUNNING", "PENDING")),
        (120, ("PENDING",)),  # one ran 27 seconds ago
        (200, ("TERMINATED",)),
    ):
        monkeypatch.setattr(module.time, "monotonic", lambda now=now: float(now))
        step(*states)
    line = "tune: no trial runs; each waits for 2 CPUs and 0.5 GPUs of one machine; "
    assert watch.lines == [line + "Ray has 1 machine of 2 CPUs; 0 CPUs in all are free"] * 2
