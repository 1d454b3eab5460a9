"""Batches across requests, formed by tokens.

Rows wait in the order of their tags (``Turns``), and a batch holds the row with the lowest tag and those of nearly its
length among the next ones, up to a number of tokens with padding.

A client may fill the queue to half, a second one half of what is left, and so on (dynamic thresholds, Choudhury and
Hahne 1998): however many ask for much, there is room for one more who asks for little. What asks for little, such as
one text, has room of its own: a client's bulk never takes that of its own next text. What is taken is finished.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from cse.runtime.domain import Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokens
from deploy.server.errors import ServiceError
from deploy.server.waiting import BatchFacts, Queue, QueuedText, Turns, Work, call, finish, refuse

# times a batch: among the first so many rows and tokens it looks for its own length. More would fill batches better
# (a whole queue of 64 texts: 1.5 % more texts/s) and let texts of a rare length wait (p99 a quarter longer).
_WINDOW = 4
_FEW = 1 / 256  # of the queue: a request of so many tokens, or of one text, is a small one
_RESERVE = 1 / 4  # of the queue, for small requests, beside it
_LONGEST_WAIT = 60  # seconds that a refused client is told to wait; clients do not come back after more
_QUIET = 3  # batches in turn without a neighbour


class Batcher:
    """A queue of rows and the threads (lanes) that run batches of them.

    Args:
        lanes: batches that run at once; on a CPU, each uses one core unless it is alone.
        batch_tokens: maximum tokens of a batch, padding included; a row beyond it runs alone.
        padding: tokens of padding that are worth one batch less.
        patience: seconds that a request may take; no more is queued than is answered in that time.
        ran: is told of every batch, from the thread that ran it.
    """

    def __init__(
        self,
        *,
        lanes: int,
        batch_tokens: int,
        batch_rows: int,
        padding: int,
        capacity: int,
        patience: float,
        ran: Callable[[BatchFacts], object] = lambda _: None,
    ) -> None:
        self._batch_tokens, self._batch_rows, self._ran = batch_tokens, batch_rows, ran
        self._padding, self._capacity, self._patience = padding, capacity, patience
        self._changed = threading.Condition()
        self._rows: list[QueuedText] = []  # a heap by tags; rows of cancelled requests stay until their turn
        self._texts = 0  # that wait
        self._others, self._small = Queue(), Queue()
        self._turns = Turns()
        self._busy = 0  # lanes that run a batch
        self._undisturbed = 0  # batches of late beside which nothing ran or waited
        self._rate = 0.0  # tokens per second, of late
        self.ended = 0.0  # when the last batch ended
        self._numbers = itertools.count()
        self._open = True
        self._several = lanes > 1
        self._lanes = [threading.Thread(target=self._lane, name=f"lane-{lane}", daemon=True) for lane in range(lanes)]
        for lane in self._lanes:
            lane.start()

    @property
    def waiting(self) -> tuple[int, int]:
        """Texts and tokens that wait."""
        return self._texts, self._others.tokens + self._small.tokens

    @property
    def alive(self) -> bool:
        """Whether every lane runs."""
        return all(lane.is_alive() for lane in self._lanes)

    @property
    def full(self) -> bool:
        """Whether no more requests are taken, but small ones."""
        return self._others.free(self._limit()) < 1

    def submit(
        self,
        encoder: OnnxEncoder,
        tokens: Tokens,
        domains: Sequence[Domain] = (),
        client: str | None = None,
        *,
        taken: bool = False,
    ) -> Work:
        """Queue the rows of a request; ``Work.done`` is set when all are answered. Called from an event loop.

        Args:
            domains: domain of each text, for a bank.
            client: whose share of the queue the request takes; None: of nobody, it may fill the queue.
            taken: whether the request was taken before and goes on, so that there is room for it.

        Raises:
            ServiceError: 429, the queue or the client's share of it is full.
        """
        loop = asyncio.get_running_loop()
        lengths = tokens.lengths
        count, total = len(lengths), int(lengths.sum())
        vectors = np.empty((count, encoder.dimension), np.float32)
        small = count == 1 or total <= self._capacity * _FEW
        work = Work(encoder, tokens, domains, client, small, loop, loop.create_future(), vectors, count, total, count)
        if not count:
            work.done.set_result(None)
            return work
        order = np.argsort(-lengths, kind="stable")
        ordered: list[int] = lengths[order].tolist()
        with self._changed:
            queue, limit = (self._small, self._capacity * _RESERVE) if small else (self._others, self._limit())
            if not queue.tokens:
                queue.large = work if client is not None and total > limit / 2 else None
            elif not taken and total > queue.room(client, limit):
                raise self._refusal(client)
            tags = self._turns.tags(ordered, count)
            for tag, length, index in zip(tags, ordered, order.tolist(), strict=True):
                heapq.heappush(self._rows, QueuedText(tag, next(self._numbers), length, index, work))
            self._texts += count
            queue.add(client, total)
            self._changed.notify(min(count, len(self._lanes)))
        return work

    def cancel(self, work: Work) -> None:
        """Drop the rows of a request whose client has gone; rows in progress run to their end."""
        with self._changed:
            if work.waiting:
                self._drop(work, work.waiting, work.waiting_tokens)
            if not self._texts:
                self._rows.clear()

    def _limit(self) -> float:
        """Return how many tokens may wait: no more than are answered in time."""
        return min(self._capacity, self._rate * self._patience) if self._rate else self._capacity

    def _refusal(self, client: str | None) -> ServiceError:
        tokens, held = self.waiting[1], self._others.held[client] + self._small.held[client] if client else 0
        wait = min(_LONGEST_WAIT, math.ceil(tokens / self._rate)) if self._rate else 1
        mine = "" if client is None else f", {held} of them yours"
        message = f"the queue is full: {tokens} tokens wait{mine}; ask again in {wait} s"
        return ServiceError(429, message, code="overloaded", retry_after=max(1, wait))

    def close(self) -> None:
        """Let the lanes finish what waits, and end them."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        for lane in self._lanes:
            lane.join()

    def _lane(self) -> None:
        while True:
            with self._changed:
                while not self._texts and self._open:
                    self._changed.wait()
                if not self._texts:
                    return
                batch = self._take()
                self._busy += 1
                # all cores for one batch, unless another is likely to come meanwhile: they would be in each other's way
                alone = self._busy == 1 and not self._texts and self._undisturbed >= _QUIET
            try:
                self._run(batch, one_core=self._several and not alone)
            finally:
                with self._changed:
                    disturbed = self._busy > 1 or self._texts
                    self._undisturbed = 0 if disturbed else self._undisturbed + 1
                    self._busy -= 1

    def _take(self) -> list[QueuedText]:
        """Remove a batch from the queue: the first row and the nearest in length."""
        window = self._next()
        head = window[0]
        kind = _kind(head)
        near = [row for row in window if _kind(row) == kind]
        near.sort(key=lambda row: (row.length, row.number))
        batch = self._alike(near, near.index(head))
        taken = {row.number for row in batch}
        for row in window:
            if row.number not in taken:
                heapq.heappush(self._rows, row)
        tokens = sum(row.length for row in batch)
        self._turns.take(head.tag, tokens)
        now = time.perf_counter()
        for row in batch:
            row.work.started = min(row.work.started, now)
            self._drop(row.work, 1, row.length)
        return batch

    def _drop(self, work: Work, texts: int, tokens: int) -> None:
        """Note that rows of a request no longer wait."""
        queue = self._small if work.small else self._others
        self._texts -= texts
        queue.add(work.client, -tokens)
        work.waiting -= texts
        work.waiting_tokens -= tokens
        if not work.waiting and queue.large is work:
            queue.large = None

    def _alike(self, near: list[QueuedText], head: int) -> list[QueuedText]:
        """Return the rows around ``head`` that fit into one batch, as long as each adds little padding.

        Args:
            near: rows in order of length.
        """
        low = high = head
        while high - low + 1 < self._batch_rows:
            rows, longest = high - low + 1, near[high].length
            steps = []  # padding that a step adds, and whether the row is longer
            if low > 0 and (rows + 1) * longest <= self._batch_tokens:
                steps.append((longest - near[low - 1].length, False))
            if high + 1 < len(near) and (rows + 1) * near[high + 1].length <= self._batch_tokens:
                steps.append((rows * (near[high + 1].length - longest), True))
            padding, longer = min(steps, default=(math.inf, False))
            if padding > self._padding:
                break
            low, high = (low, high + 1) if longer else (low - 1, high)
        return near[low : high + 1]

    def _next(self) -> list[QueuedText]:
        """Remove the first rows from the heap, at least one, without those of cancelled requests."""
        found: list[QueuedText] = []
        tokens = 0
        while self._rows and len(found) < _WINDOW * self._batch_rows and tokens < _WINDOW * self._batch_tokens:
            row = heapq.heappop(self._rows)
            if row.work.waiting:
                found.append(row)
                tokens += row.length
        return found

    def _run(self, batch: list[QueuedText], *, one_core: bool) -> None:
        start = time.perf_counter()
        try:
            self._answer(batch, one_core)
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch[0].work, error)
                return
            for row in batch:  # one row's failure is not the others'
                self._run([row], one_core=one_core)
            return
        seconds = time.perf_counter() - start
        tokens = sum(row.length for row in batch)
        with self._changed:
            now = time.perf_counter()
            rate = tokens / (now - max(start, self.ended) + 1e-6)  # lanes end in turn, so this is the rate of all
            self.ended = now
            self._rate += 0.1 * (rate - self._rate) if self._rate else rate
        self._ran(BatchFacts(len(batch), tokens, len(batch) * max(row.length for row in batch), seconds))

    def _answer(self, batch: list[QueuedText], one_core: bool) -> None:
        rows = [row.work.tokens.row(row.place) for row in batch]
        domains = [row.work.domains[row.place] for row in batch] if batch[0].work.domains else []
        vectors = batch[0].work.encoder.embed_rows(rows, domains, one_core=one_core)
        finite: list[bool] = np.isfinite(vectors).all(axis=1).tolist()  # type: ignore[assignment]
        finished: dict[asyncio.AbstractEventLoop, list[Work]] = {}
        with self._changed:
            for row, vector, good in zip(batch, vectors, finite, strict=True):
                row.work.vectors[row.place] = vector if good else np.nan
                row.work.left -= 1
                if row.work.left == 0:
                    finished.setdefault(row.work.loop, []).append(row.work)
        for loop, works in finished.items():
            call(loop, finish, works)

    def _fail(self, work: Work, error: Exception) -> None:
        self.cancel(work)
        call(work.loop, refuse, work, error)


def _kind(row: QueuedText) -> tuple[OnnxEncoder, int]:
    """Return what the rows of a batch have in common: a model, and prompts and updates of about a size.

    A batch's are filled up to the largest; below a megabyte that costs little.
    """
    work = row.work
    size = work.domains[row.place].bytes_filled if work.domains else 0
    return work.encoder, (size >> 20).bit_length()
