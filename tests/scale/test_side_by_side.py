"""Jobs shared out to workers that have several at once, with a stand-in for Ray: one reply at a time, in order."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import ray

from cse.ray_session import Crew
from cse.scale.corpus.side_by_side import Ended, share_out


class Method:
    """``method.remote(...)`` of an actor."""

    def __init__(self, call):
        self.remote = call


class Worker:
    """Dies with a job named ``deadly``, and all its jobs with it."""

    def __init__(self, began):
        self.began, self.held, self.dead = began, [], False
        self.__ray_ready__, self.run = Method(lambda: Reply(self, None)), Method(self.take)

    def take(self, name):
        self.held.append(name)
        self.began.append((self, name, len(self.held)))
        return Reply(self, name)


class Reply:
    def __init__(self, worker, name):
        self.worker, self.name = worker, name


def fake_ray():
    def get(reply):
        worker = reply.worker
        if reply.name is None:
            return None
        if worker.dead or "deadly" in worker.held:
            worker.dead = True
            raise ray.exceptions.RayActorError
        worker.held.remove(reply.name)
        return reply.name.upper()

    def wait(replies, *, num_returns, timeout):
        return replies[:1], replies[1:]

    return SimpleNamespace(wait=wait, get=get, exceptions=ray.exceptions)


def ended(names, workers, each, most_losses=2):
    """What became of jobs, and the jobs in the order in which they were begun: worker, name, how many it then had."""
    began = []
    jobs = ((name, (name,)) for name in names)
    found = share_out(fake_ray(), lambda: Worker(began), jobs, Crew(workers, 1), each=each, most_losses=most_losses)
    return list(found), began


@pytest.mark.parametrize("each", [1, 2, 3])
def test_a_worker_has_no_more_jobs_than_it_may_have(each):
    names = [f"job {number}" for number in range(12)]
    found, began = ended(names, 2, each)
    assert sorted(found) == sorted(Ended(name, name.upper(), "") for name in names)
    assert max(held for *_, held in began) == each


def test_jobs_lost_with_a_worker_run_again_alone_and_none_is_given_up_for_what_another_did():
    names = ["one", "two", "deadly", "three", "four"]
    found, began = ended(names, 1, 3)
    results = {one.name: one for one in found}
    assert len(found) == len(results) == 5
    assert results.pop("deadly").lost == "its worker died 3 times, killed externally or out of memory"
    assert all(one.result == name.upper() for name, one in results.items())
    times = Counter(name for _, name, _ in began)
    assert times == {"one": 2, "two": 2, "deadly": 3, "three": 1, "four": 1}
    assert [name for _, name, _ in began[:6]] == ["one", "two", "deadly", "one", "two", "deadly"], "in their order"
    assert [held for _, _, held in began[3:7]] == [1, 1, 1, 1], "alone"
    assert began[-1][2] == 2, "then side by side again"
