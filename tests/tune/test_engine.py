"""What a sweep says while none of its trials runs."""

from __future__ import annotations

from types import SimpleNamespace

from cse.tune import engine


def test_a_line_says_what_waiting_trials_wait_for(monkeypatch, capsys):
    lines = engine._Lines(None, 4, "2 CPUs and 0.5 GPUs")
    monkeypatch.setattr(engine, "free_in_words", lambda ray: "Ray has 1 machine of 2 CPUs; 0 CPUs in all are free")
    for now, states in (
        (100, ("PENDING", "PENDING")),
        (129, ("PENDING", "PENDING")),
        (131, ("PENDING", "PENDING")),  # the first line
        (150, ("PENDING",)),
        (162, ("TERMINATED", "PENDING")),  # the second
        (193, ("RUNNING", "PENDING")),
        (220, ("PENDING",)),  # one ran 27 seconds ago
        (300, ("TERMINATED",)),
    ):
        monkeypatch.setattr(engine.time, "monotonic", lambda now=now: float(now))
        lines.on_step_begin(0, [SimpleNamespace(status=state) for state in states])
    line = "tune: no trial runs; each waits for 2 CPUs and 0.5 GPUs of one machine; "
    assert capsys.readouterr().err == (line + "Ray has 1 machine of 2 CPUs; 0 CPUs in all are free\n") * 2
