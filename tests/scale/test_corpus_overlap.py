"""While a piece is encoded, the next is read and tokenised and the one before is written."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import ray

from cse.errors import CseError, Interrupted
from cse.scale.corpus import embed as module
from cse.scale.corpus import pool
from cse.scale.corpus.embed import embed_corpus
from cse.scale.corpus.pool import PieceActor
from cse.scale.corpus.worker import Worker
from cse.scale.side_by_side import Crew
from cse.scale.storage import Folder
from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.scale.corpora import choices, outputs, sentences, shards, write_txt

PIECES = 5


@pytest.fixture
def corpus(tmp_path):
    return write_txt(tmp_path / "corpus.txt", sentences(10 * PIECES))


class Stages:
    """Counts the stages that began; each but those of the last piece lasts until the stage before it has the next."""

    def __init__(self) -> None:
        self.began, self.changed = Counter(), threading.Condition()

    def after(self, stage, before):
        """Wrap a stage: its ``n``-th piece is held up until ``before`` has begun ``n + 1``."""

        def wrapped(method):
            def held_up(*given):
                with self.changed:
                    self.began[stage] += 1
                    number = self.began[stage]
                    self.changed.notify_all()
                    if before and number < PIECES:
                        overlapped = self.changed.wait_for(lambda: self.began[before] > number, timeout=20)
                        assert overlapped, f"{stage} {number} and {before} {number + 1} do not overlap"
                return method(*given)

            return held_up

        return wrapped


class Actor(Worker):
    """Makes shards as an actor of Ray does, whose threads take pieces as they come."""

    def make_shards(self, todo):
        actor = PieceActor(self.config)
        with ThreadPoolExecutor(2) as threads:
            for made in threads.map(lambda job: actor.run(*job), todo):
                if isinstance(made, str):
                    raise CseError(made)
                yield made


@pytest.mark.parametrize("worker", [Worker, Actor])
def test_no_stage_waits_for_another(bundle, corpus, tmp_path, monkeypatch, worker):  # noqa: F811
    """With a storage so slow that a write ends only once the next piece is being encoded, and so on."""
    embed_corpus(str(corpus), str(tmp_path / "straight"), str(bundle), choices(), workers=0)
    stages, write = Stages(), Folder.write

    def slow_write(self, name, content):
        if name.startswith("part-"):
            stages.after("write", "encode")(lambda: None)()
        write(self, name, content)

    monkeypatch.setattr(module, "Worker", worker)
    monkeypatch.setattr(Folder, "write", slow_write)
    monkeypatch.setattr(Worker, "encode", stages.after("encode", "prepare")(Worker.encode))
    monkeypatch.setattr(Worker, "prepare", stages.after("prepare", None)(Worker.prepare))
    embed_corpus(str(corpus), str(tmp_path / "slow"), str(bundle), choices(), workers=0)
    assert stages.began == {"prepare": PIECES, "encode": PIECES, "write": PIECES}
    assert outputs(tmp_path / "slow") == outputs(tmp_path / "straight")


@pytest.mark.parametrize("worker", [Worker, Actor])
def test_one_piece_is_encoded_at_a_time(bundle, corpus, tmp_path, monkeypatch, worker):  # noqa: F811
    encode, inside, seen = Worker.encode, threading.Semaphore(1), []

    def encode_alone(self, work):
        assert inside.acquire(blocking=False), "two at once"
        try:
            seen.append(work.piece.number)
            return encode(self, work)
        finally:
            inside.release()

    monkeypatch.setattr(module, "Worker", worker)
    monkeypatch.setattr(Worker, "encode", encode_alone)
    embed_corpus(str(corpus), str(tmp_path / "vectors"), str(bundle), choices(), workers=0)
    assert sorted(seen) == list(range(PIECES))


def test_at_most_three_pieces_are_in_memory(bundle, corpus, tmp_path, monkeypatch):  # noqa: F811
    """Read and not yet saved: one ahead of the encoder, one in it, one behind it."""
    saved, most, read, save = [], [], module.read_pieces, Worker.save

    def counted(*given):
        for number, job in enumerate(read(*given), start=1):
            most.append(number - len(saved))
            yield job

    monkeypatch.setattr(module, "read_pieces", counted)
    monkeypatch.setattr(Worker, "save", lambda *given: saved.append(save(*given)) or saved[-1])
    embed_corpus(str(corpus), str(tmp_path / "vectors"), str(bundle), choices(), workers=0)
    assert len(most) == PIECES
    assert max(most) <= 3


def test_a_shard_that_cannot_be_written_is_named_though_the_next_piece_is_under_way(
    bundle, corpus, tmp_path, monkeypatch  # noqa: F811
):  # fmt: skip
    write, encode, encoding, counted = Folder.write, Worker.encode, threading.Event(), []

    def failing_write(self, name, content):
        if name == "part-000002.parquet":
            assert encoding.wait(30), "the next piece is encoded meanwhile"
            raise CseError(f"{self / name}: cannot be written: the bucket is gone")
        write(self, name, content)

    def encode_noting(self, work):
        if work.piece.number == 3:
            encoding.set()
        return encode(self, work)

    monkeypatch.setattr(Folder, "write", failing_write)
    monkeypatch.setattr(Worker, "encode", encode_noting)
    monkeypatch.setattr(module.CorpusProgress, "add", lambda self, rows: counted.append(rows))
    with pytest.raises(CseError, match=r"part-000002\.parquet: cannot be written: the bucket is gone"):
        embed_corpus(str(corpus), str(tmp_path / "vectors"), str(bundle), choices(), workers=0)
    assert [path.name for path in shards(tmp_path / "vectors")] == ["part-000000.parquet", "part-000001.parquet"]
    assert counted == [10, 10], "rows count once they are saved"


def test_a_signal_ends_the_run_with_the_shard_whose_write_had_begun(bundle, corpus, tmp_path, monkeypatch):  # noqa: F811
    encode = Worker.encode

    def interrupted(self, work):
        if work.piece.number == 2:
            raise Interrupted(15, "after 10 rows")
        return encode(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "encode", interrupted)
        with pytest.raises(Interrupted):
            embed_corpus(str(corpus), str(tmp_path / "vectors"), str(bundle), choices(), workers=0)
    assert len(shards(tmp_path / "vectors")) == 2
    again = embed_corpus(str(corpus), str(tmp_path / "vectors"), str(bundle), choices(), workers=0)
    assert (again.rows, again.found) == (50, 20)


@pytest.mark.parametrize(
    ("provider", "pieces", "workers", "each"),
    [("cpu", 40, 2, 2), ("cuda", 40, 2, 3), ("cpu", 2, 2, 1), ("cuda", 4, 2, 2), ("cpu", 1, 2, 1)],
)
def test_no_actor_takes_a_second_piece_that_another_could_begin(monkeypatch, provider, pieces, workers, each):
    threads, shared = [], []

    def remote(*, max_concurrency, **_):
        threads.append(max_concurrency)
        return lambda actor: actor

    fake = SimpleNamespace(remote=remote, exceptions=ray.exceptions)
    monkeypatch.setattr(pool, "share_out", lambda *_, each, **__: shared.append(each) or iter(()))
    config = SimpleNamespace(choices=choices(provider=provider))
    assert list(pool.make_shards(fake, config, iter(()), pieces, [], Crew(workers, 1), print)) == []
    assert threads == shared == [each]
