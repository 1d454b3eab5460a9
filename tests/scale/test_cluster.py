"""A cluster of several machines (nodes on this one): all workers find a place, or a line says what they wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from ray import tune
from ray.cluster_utils import Cluster
from ray.tune import RunConfig

from cse.bench.worker import work_through
from cse.errors import CseError
from cse.scale import side_by_side as module
from cse.scale.corpus.embed import embed_corpus
from cse.scale.session import ray_session
from cse.scale.side_by_side import Crew, share_out
from cse.tune import watch
from tests.cli.workspace import write_params, write_prepared
from tests.deploy.bundles import write_bundle
from tests.scale.corpora import choices, sentences, shards, write_txt
from tests.scale.echo import Echo, fail_with_threads
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(forking_python):
    """A head that holds no worker, and three machines of two CPUs: a third of the sum fits none of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", forking_python)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # though this user may have a token
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8})
        try:
            for _ in range(3):
                made.add_node(num_cpus=2, object_store_memory=10**8)
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()


def test_jobs_side_by_side_find_a_place(cluster):
    found = sorted(work_through(fail_with_threads, ["a", "b", "c"], at_once=2, unit="run"))
    assert found == [("a", "a on 2"), ("b", "b on 2"), ("c", "c on 2")]


def test_workers_that_wait_say_what_for(cluster, monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.5)
    lines = []
    with ray_session() as ray:
        hold = [ray.remote(num_cpus=2)(Echo).remote(2) for _ in range(3)]
        ray.get([one.__ray_ready__.remote() for one in hold])

        def say(line: str) -> None:
            lines.append(line)
            if len(lines) == 2:
                ray.kill(hold.pop())

        echo = ray.remote(num_cpus=2)(Echo)
        found = list(share_out(ray, lambda: echo.remote(2), [("a", ("a",)), ("b", ("b",))], Crew(2, 2), say=say))
        assert sorted(ended.result for ended in found) == ["a on 2", "b on 2"], "one worker was enough"
    has = "Ray has 3 machines of 2 CPUs, 1 of 0 CPUs; 0 CPUs in all are free"
    assert lines[0] == f"2 of 2 workers wait for 2 CPUs of one machine each; {has}"
    assert lines[-1].startswith("1 of 2 workers wait"), lines


def test_trials_that_wait_say_what_for(cluster, monkeypatch, tmp_path):
    """Ray Tune asks its callbacks at every step, also while it waits."""
    monkeypatch.setattr(watch, "WAIT_SECONDS", 0.5)
    shown, lines = watch.Watch(SimpleNamespace(name="s"), SimpleNamespace(threads=2, config_of=dict), ""), []
    with ray_session() as ray:
        hold = [ray.remote(num_cpus=2)(Echo).remote(2) for _ in range(3)]
        ray.get([one.__ray_ready__.remote() for one in hold])

        def say(line: str) -> None:
            lines.append(line)
            while hold:
                ray.kill(hold.pop())

        monkeypatch.setattr(shown, "say", say)
        monkeypatch.setattr(watch, "_watching", shown)
        run = RunConfig(storage_path=str(tmp_path), callbacks=[watch.callback()], verbose=0)
        found = tune.Tuner(tune.with_resources(lambda config: {"score": 1.0}, {"cpu": 2}), run_config=run).fit()
    assert found[0].metrics["score"] == 1.0
    assert lines[0].startswith("tune: no trial runs; each waits for 2 CPUs of one machine; Ray has 3 machines")


def test_what_no_machine_can_hold_is_refused_at_once(cluster, tmp_path):
    from cse.scale.corpus.cluster import running_ray

    with pytest.raises(CseError, match="--workers 9: each takes 1 CPU of one machine"), running_ray(9, "cpu"):
        pass


def test_a_lost_machine_costs_embed_its_pieces_and_no_shard(cluster, tmp_path):
    """The workers that it held find no place any more; the others do their pieces."""
    corpus, bundle = str(write_txt(tmp_path / "a.txt", sentences(4000))), str(write_bundle(tmp_path / "bundle"))
    embed_corpus(corpus, str(tmp_path / "alone"), bundle, choices(shard_rows=20), workers=0)
    lost, out = cluster.add_node(num_cpus=2, object_store_memory=10**8), tmp_path / "out"

    def lose() -> None:
        wait_for(lambda: len(shards(out)) >= 20)
        cluster.remove_node(lost, allow_graceful=False)
        at.append(len(shards(out)))

    at, losing = [], threading.Thread(target=lose)
    losing.start()
    done = embed_corpus(corpus, str(out), bundle, choices(shard_rows=20), workers=8)
    losing.join()
    assert 20 <= at[0] < 200, "it was lost on the way"
    assert (done.rows, done.shards) == (4000, 200)
    assert [one.read_bytes() for one in shards(out)] == [one.read_bytes() for one in shards(tmp_path / "alone")]


def test_training_starts_though_its_part_of_the_sum_fits_no_machine(cluster, tiny_folders, tmp_path):
    write_prepared(tmp_path / "data/prepared", rows=40)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    command = [sys.executable, "-m", "cse.cli", "train", "--out", "out", "-s", "train.workers=2"]
    done = subprocess.run(
        [*command, "-s", "train.epochs=1"], cwd=tmp_path, text=True, capture_output=True, timeout=500, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "workers that share each batch: 2" in done.stderr
