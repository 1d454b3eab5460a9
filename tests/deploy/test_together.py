"""What replicas tell each other: sums that never fall, drift as of one server, health of all."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from cse.runtime.sketch import Sketch, sketch_of
from deploy.server import together
from deploy.server.metrics import Metrics
from deploy.server.together import Board, Snapshot, summed


def series(text: bytes) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def counted(requests: int, waiting: float = 0, version: str = "v1", drift: float = 0.0) -> Metrics:
    made = Metrics()
    made.requests.labels("/embed", 200).inc(requests)
    for _ in range(requests):
        made.request_seconds.labels("/embed").observe(0.003)
    made.queue_texts.set(waiting)
    made.serves("small", version)
    made.drifted({"small": drift})
    return made


def test_counters_histograms_and_queues_are_sums():
    one, other = counted(3, waiting=2, drift=0.1), counted(4, waiting=5, drift=0.7)
    found = series(one.text([other.collect()]))
    assert found['cse_requests_total{route="/embed",status="200"}'] == 7
    assert found['cse_request_seconds_count{route="/embed"}'] == 7
    assert found['cse_request_seconds_bucket{le="0.005",route="/embed"}'] == 7
    assert found['cse_request_seconds_bucket{le="0.0025",route="/embed"}'] == 0
    assert found["cse_queue_texts"] == 7
    assert found['cse_model_info{model="small",version="v1"}'] == 1
    assert found['cse_drift_distance{model="small"}'] == 0.1, "of the one that was asked, which measured for all"
    assert series(one.text()).keys() == found.keys()


def test_what_a_replica_counted_stays_when_it_is_gone(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(together.time, "monotonic", lambda: now[0])
    board, asked = Board(), counted(0)

    def total(seconds: float) -> tuple[float, float]:
        now[0] += seconds
        others = board.tell("asked", Snapshot(asked.collect()))
        found = series(asked.text([one.metrics for one in others]))
        assert all(one.alive for one in others)
        return found['cse_requests_total{route="/embed",status="200"}'], found["cse_queue_texts"]

    board.tell("first", Snapshot(counted(3, waiting=2).collect()))
    board.tell("second", Snapshot(counted(4, waiting=5).collect()))
    assert total(1) == (7, 7)
    board.tell("first", None)  # it ends
    assert total(1) == (7, 5)
    assert total(20) == (7, 0), "the second is silent: nothing waits there"
    assert total(700) == (7, 0)
    assert len(board._told) == 1, "no more is kept than one sum"
    board.tell("third", Snapshot(counted(1).collect()))
    assert total(1) == (8, 0)


def test_a_replica_whose_threads_ended_is_seen_by_the_others():
    board = Board()
    board.tell("ill", Snapshot([], alive=False, ready=False))
    assert [one.alive for one in board.tell("well", Snapshot([], ready=True))] == [False]
    assert [one.ready for one in board.tell("ill", Snapshot([], alive=False))] == [True]


def test_sketches_beside_each_other_equal_one_of_all_vectors():
    vectors = np.random.default_rng(0).normal(size=(600, 8))
    parts = Sketch(8, half_life=None), Sketch(8, half_life=None)
    for part, rows in zip(parts, (vectors[:200], vectors[200:]), strict=True):
        part.add(rows)
    both = Sketch(8, half_life=None)
    for part in parts:
        both.join(pickle.loads(pickle.dumps(part)))
    found, whole = both.moments(), sketch_of(vectors)
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-12)
    np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-12)
    assert (both.texts, found.count) == (600, pytest.approx(600))


def test_neither_of_two_busy_replicas_is_forgotten():
    rng = np.random.default_rng(0)
    parts = Sketch(2, half_life=10), Sketch(2, half_life=10)
    for part, centre in zip(parts, ([1, 0], [0, 1]), strict=True):
        part.add(rng.normal(centre, 0.01, size=(500, 2)))
    both = Sketch(2, half_life=10)
    for part in parts:
        both.join(part)
    np.testing.assert_allclose(both.moments().mean, [0.5, 0.5], atol=0.02)


def test_sums_of_nothing():
    assert summed([]) == []
