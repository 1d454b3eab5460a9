"""Batches across requests: which rows run together, in what order, and what becomes of the others."""

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from cse.runtime.tokens import Tokens
from deploy.server.batcher import Batcher
from deploy.server.errors import ServiceError
from tests.deploy.servers import in_a_loop

WIDTH = 2


class Stepping:
    """An encoder that runs one batch at a time when it is told to."""

    dimension = WIDTH

    def __init__(self) -> None:
        self.ran, self._begun, self._go = 0, threading.Semaphore(0), threading.Semaphore(0)

    def embed_rows(self, rows, domains=(), *, one_core=False):
        self._begun.release()
        assert self._go.acquire(timeout=30)
        return np.zeros((len(rows), WIDTH), np.float32)

    async def started(self):
        """Wait until a batch runs."""
        assert await asyncio.to_thread(self._begun.acquire, timeout=30)

    async def step(self, batches=1):
        """Let a batch end and the next one start, so many times."""
        for _ in range(batches):
            self._go.release()
            self.ran += 1
            await self.started()

    def release(self):
        self._go.release(1_000_000)


class Slow:
    """An encoder whose answer to a row is its sum and length; it waits at a gate, and notes what it ran."""

    dimension = WIDTH

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.batches: list[list[list[int]]] = []
        self.one_core: list[bool] = []
        self.at_gate = threading.Semaphore(0)

    def embed_rows(self, rows, domains=(), *, one_core=False):
        self.batches.append([row.tolist() for row in rows])
        self.one_core.append(one_core)
        self.at_gate.release()
        assert self.gate.wait(30)
        if any(len(row) and row[0] == 666 for row in rows):
            raise RuntimeError("this row fails")
        return np.array([[row.sum(), len(row)] for row in rows], np.float32)


def tokens(*rows):
    return Tokens.of([np.array(row, np.int32) for row in rows])


def of_lengths(*lengths):
    return tokens(*(np.full(length, length) for length in lengths))


@pytest.fixture
def make():
    made = []

    def new(**options):
        usual = {"lanes": 1, "batch_tokens": 64, "batch_rows": 64, "padding": 1000, "capacity": 10_000, "patience": 1e9}
        made.append(Batcher(**usual | options))
        return made[-1]

    yield new
    for batcher in made:
        batcher.close()


@pytest.fixture
def stepping(make):  # torn down first, or the lanes would not end
    encoder = Stepping()
    yield encoder
    encoder.release()


@asynccontextmanager
async def held(make, **options):
    """A batcher and an encoder whose only lane is busy, so that what is asked of it waits until the block ends."""
    batcher, encoder = make(**options), Slow()
    first = batcher.submit(encoder, tokens([1]))
    await asyncio.to_thread(encoder.at_gate.acquire)
    yield batcher, encoder
    encoder.gate.set()
    await first.done


async def batches_of(make, *lengths, domains=None, **options):
    """Texts of these lengths wait, a request each: those that run together, by length."""
    async with held(make, **options) as (batcher, encoder):
        given = zip(lengths, domains or [None] * len(lengths), strict=True)
        works = [batcher.submit(encoder, of_lengths(one), [domain] if domain else ()) for one, domain in given]
    await asyncio.gather(*(work.done for work in works))
    return [sorted(map(len, batch)) for batch in encoder.batches[1:]]


@in_a_loop
async def test_each_request_gets_its_own_vectors_in_order(make):
    batcher, encoder, random = make(lanes=2), Slow(), np.random.default_rng(1)
    encoder.gate.set()
    given = [of_lengths(*random.integers(1, 30, size)) for size in (1, 7, 2, 40, 1, 0)]
    works = [batcher.submit(encoder, one) for one in given]
    await asyncio.gather(*(work.done for work in works))
    for one, work in zip(given, works, strict=True):
        lengths = one.lengths.tolist()
        wanted = np.array([[length**2, length] for length in lengths]).reshape(-1, WIDTH)
        np.testing.assert_array_equal(work.vectors, wanted)
    assert max(map(len, encoder.batches)) > 1, "rows of several requests ran together"
    assert batcher.waiting == (0, 0)


@in_a_loop
async def test_a_batch_holds_the_oldest_row_and_those_of_about_its_length_up_to_the_budget(make):
    """A row beyond the budget runs alone; so do rows that would be padded much."""
    first, *others = await batches_of(make, 10, 50, 11, 9, 52, 12, 8, 10, 500)
    assert first == [8, 9, 10, 10, 11], "five rows of at most 12 tokens fit in 64"
    assert sorted(others) == [[12], [50], [52], [500]]
    found = await batches_of(make, 10, 30, 12, 14, 33, 9, 60, batch_tokens=1000, padding=4)
    assert found == [[9, 10, 12], [30, 33], [14], [60]]
    assert await batches_of(make, 20, 19, 18, 17) == [[18, 19, 20], [17]]
    assert await batches_of(make, 5, 5, 5, 5, batch_rows=3) == [[5, 5, 5], [5]]


async def steps_to(work, encoder, most=3000):
    """Batches that end before a request is answered."""
    before = encoder.ran
    while work.left:
        await encoder.step()
        assert encoder.ran - before < most, "it starves"
    return encoder.ran - before


@pytest.mark.parametrize(("bulks", "texts", "most"), [(1, 2048, 2), (8, 400, 8)])
@in_a_loop
async def test_a_text_waits_about_one_batch_at_any_time_of_bulk_requests(make, stepping, bulks, texts, most):
    batcher, encoder, random = make(batch_tokens=64, padding=8, capacity=1e9), stepping, np.random.default_rng(bulks)
    works = []
    for bulk in range(bulks):  # not at the same time
        works.append(batcher.submit(encoder, of_lengths(*random.integers(3, 30, texts)), client=f"bulk {bulk}"))
        await (encoder.step(5) if bulk else encoder.started())
    waited = []
    for _ in range(40):
        await encoder.step(int(random.integers(1, 20)))
        single = batcher.submit(encoder, of_lengths(int(random.integers(3, 30))), client="single")
        waited.append(await steps_to(single, encoder))
    assert all(work.waiting for work in works), "the bulks still wait"
    assert max(waited) <= most, "a batch was running, and one is its own"
    encoder.release()
    await asyncio.gather(*(work.done for work in works))


@in_a_loop
async def test_a_bulk_request_gets_the_share_of_several_clients(make, stepping):
    batcher, encoder = make(batch_tokens=40), stepping
    bulk = batcher.submit(encoder, of_lengths(*[20] * 200), client="bulk")
    await encoder.started()
    singles, answered = [], 0
    while bulk.waiting:  # 24 clients, each with its next text at once
        left = [work for work in singles if work.left]
        answered += len(singles) - len(left)
        new = [batcher.submit(encoder, of_lengths(20), client=str(n)) for n in range(24 - len(left))]
        singles = left + new
        await encoder.step()
        assert answered < 2500, "the bulk request starves"
    # of eight, or of three where the clients ask again before their share is used up
    assert 200 * 24 / 8 < answered < 200 * 24 / 3
    encoder.release()
    await asyncio.gather(bulk.done, *(work.done for work in singles))


def refused(batcher, encoder, lengths, client):
    try:
        return batcher.submit(encoder, of_lengths(*lengths), client=client) and False
    except ServiceError as error:
        assert error.status_code == 429
        return True


@pytest.mark.parametrize("texts", [64, 2000])
@in_a_loop
async def test_clients_of_bulks_that_fill_the_queue_leave_room_for_another_ones_text(make, texts):
    async with held(make, capacity=10_000) as (batcher, encoder):
        # each asks for as much as it gets, the largest beyond the whole queue
        turned_away = [refused(batcher, encoder, [20] * texts, f"bulk {n % 8}") for n in range(160)]
        assert any(turned_away), "the queue is full for them"
        assert not any(refused(batcher, encoder, [20] * 3, f"single {n}") for n in range(8))
        assert not batcher.full


@in_a_loop
async def test_a_client_gets_its_share_back(make):
    async with held(make, capacity=1000) as (batcher, encoder):
        taken = [batcher.submit(encoder, of_lengths(50, 50), client="one") for _ in range(5)]
        with pytest.raises(ServiceError, match="500 tokens wait, 500 of them yours"):
            batcher.submit(encoder, of_lengths(50, 50), client="one")
        other = batcher.submit(encoder, of_lengths(50, 50), client="other")
        batcher.cancel(taken.pop())
        taken.append(batcher.submit(encoder, of_lengths(5, 5), client="one"))
    await asyncio.gather(other.done, *(work.done for work in taken))
    assert batcher.waiting == (0, 0) and not batcher._others.held, "no client is remembered"


@in_a_loop
async def test_a_request_beyond_its_share_counts_as_half_of_the_queue(make, stepping):
    batcher, encoder = make(capacity=100, batch_tokens=20), stepping
    batcher.submit(encoder, of_lengths(1))
    await encoder.started()
    large = batcher.submit(encoder, of_lengths(*[9] * 10), client="one")  # nothing waited
    assert not refused(batcher, encoder, [10, 10], "other"), "of the half that is left"
    assert refused(batcher, encoder, [6, 10], "third")
    await encoder.step()
    assert large.waiting and not refused(batcher, encoder, [6, 6], "third"), "also when a part of it has run"
    encoder.release()
    await large.done


@in_a_loop
async def test_a_batch_has_all_cores_after_three_without_a_neighbour(make):
    """Two lanes; until a second text comes beside it."""
    batcher, encoder = make(lanes=2), Slow()

    async def run(texts):
        encoder.gate.clear()
        works = []
        for _ in range(texts):
            works.append(batcher.submit(encoder, tokens([1])))
            await asyncio.to_thread(encoder.at_gate.acquire)
        encoder.gate.set()
        await asyncio.gather(*(work.done for work in works))
        while batcher._busy:  # a lane is done a little after its answer
            await asyncio.sleep(0.001)

    for texts in (1, 1, 1, 1, 2, 1):
        await run(texts)
    assert encoder.one_core == [True, True, True, False, *[False, True], True]


@in_a_loop
async def test_a_client_whose_bulk_fills_the_queue_asks_for_single_texts_beside_it(make):
    """One key for ingestion and for queries is the usual case."""
    async with held(make, capacity=262_144, patience=60) as (batcher, encoder):
        bulks = [refused(batcher, encoder, [20] * 2048, "mine") for _ in range(8)]
        assert bulks[0] is False and bulks[-1] is True
        while not refused(batcher, encoder, [20] * 60, "mine"):
            continue  # until its share is full
        assert not any(refused(batcher, encoder, [20], "mine") for _ in range(200))
        assert not any(refused(batcher, encoder, [20] * 10, "mine") for _ in range(20)), "and for a few"
        for client in ("mine", "other"):
            assert any(refused(batcher, encoder, [500], client) for _ in range(200)), "there is an end to it"


@in_a_loop
async def test_a_heavy_domain_fills_up_no_rows_of_light_ones(make):
    light, heavy = SimpleNamespace(bytes_filled=300_000), SimpleNamespace(bytes_filled=2**30)
    found = await batches_of(make, 2, 3, 4, 5, domains=(light, heavy, light, heavy), batch_tokens=1000)
    assert found == [[2, 4], [3, 5]]


@in_a_loop
async def test_a_full_queue_refuses_and_says_when_to_come_back(make):
    async with held(make, capacity=100) as (batcher, encoder):
        works = [batcher.submit(encoder, of_lengths(45, 45))]
        with pytest.raises(ServiceError) as refused:
            batcher.submit(encoder, of_lengths(6, 5))
        assert refused.value.status_code == 429
        assert refused.value.headers["Retry-After"] == "1", "nothing is known of its speed"
        batcher._rate = 30.0  # tokens per second
        with pytest.raises(ServiceError, match="90 tokens wait; ask again in 3 s"):
            batcher.submit(encoder, of_lengths(6, 5))
        works.append(batcher.submit(encoder, of_lengths(5, 5)))  # what fits is taken
        works.append(batcher.submit(encoder, of_lengths(50, 50), taken=True))  # and so is what goes on
    await asyncio.gather(*(work.done for work in works))
    work = batcher.submit(encoder, of_lengths(300))  # an empty queue takes any request
    await work.done


@in_a_loop
async def test_a_row_that_fails_does_not_fail_its_neighbours(make):
    async with held(make) as (batcher, encoder):
        good, bad, other = (batcher.submit(encoder, tokens([start, 1, 1])) for start in (1, 666, 2))
    await asyncio.gather(good.done, other.done)
    with pytest.raises(RuntimeError, match="this row fails"):
        await bad.done
    np.testing.assert_array_equal(good.vectors, [[3, 3]])
    assert len(encoder.batches[1]) == 3, "they ran together at first"


@in_a_loop
async def test_two_models_never_share_a_batch(make):
    new = Slow()
    new.gate.set()
    async with held(make) as (batcher, old):
        works = [batcher.submit(encoder, of_lengths(5)) for encoder in (old, new, old, new)]
    await asyncio.gather(*(work.done for work in works))
    assert [len(batch) for batch in old.batches] == [1, 2]
    assert [len(batch) for batch in new.batches] == [2]
