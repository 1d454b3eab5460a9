"""What waits: the rows of requests, whose turn it is, and the way back to the event loop that waits for them."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cse.runtime.domain import Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokens

_SHARE = 8  # a request of many texts weighs as much as this many of one


class BatchFacts(NamedTuple):
    """What is known of a batch once it has run."""

    rows: int
    tokens: int
    padded: int
    seconds: float


@dataclass(eq=False)
class Work:
    """The rows of one request.

    Attributes:
        encoder: the model that answers; requests in progress keep theirs when another one takes over.
        domains: domain of each text.
        client: whose share of the queue it takes; None: of nobody.
        vectors: answers (n, d), not scaled to unit length.
        waiting: rows that no batch has taken yet.
        left: rows that are not answered yet.
        submitted: time of arrival, in seconds.
        started: time when the first row was taken.
    """

    encoder: OnnxEncoder
    tokens: Tokens
    domains: Sequence[Domain]
    client: str | None
    small: bool
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    vectors: NDArray[np.float32]
    waiting: int
    waiting_tokens: int
    left: int
    submitted: float = field(default_factory=time.perf_counter)
    started: float = math.inf


class QueuedText(NamedTuple):
    """A text that waits; ordered by tag, then by number, which is unique."""

    tag: float
    number: int
    length: int
    place: int
    work: Work


class Queue:
    """What waits of small requests, or of all others.

    Attributes:
        held: those of each client.
        large: a client's request beyond its share, taken because nothing waited.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.held: Counter[str] = Counter()
        self.large: Work | None = None

    def free(self, limit: float) -> float:
        """Return how many tokens more may wait; a client's large request counts as half of the queue."""
        beyond = 0.0 if self.large is None else max(0.0, self.large.waiting_tokens - limit / 2)
        return limit - self.tokens + beyond

    def room(self, client: str | None, limit: float) -> float:
        """Return how many tokens more a client may let wait: afterwards at least as much is free as it holds."""
        free = self.free(limit)
        return free if client is None else (free - self.held[client]) / 2

    def add(self, client: str | None, tokens: int) -> None:
        """Note that tokens of a client wait, or no longer do if there are less than none."""
        self.tokens += tokens
        if client is not None:
            self.held[client] += tokens
            if not self.held[client]:
                del self.held[client]


class Turns:
    """Whose turn it is: virtual time at the start of the last batch, as in weighted fair queueing (Demers, Keshav and
    Shenker 1989).

    A request's rows are tagged with the virtual time of its arrival plus the tokens before them by its weight. Virtual
    time moves on by the tokens computed by the weight of all requests, as fast as the tags of each: so a request of
    many texts does not hold up one of a single text, and does not starve either.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._ran = 0  # tokens of the last batch
        self._ends: list[tuple[float, int]] = []  # a heap: when virtual time is through with a request, and its weight
        self._weight = 0  # sum of theirs

    def tags(self, lengths: Iterable[int], count: int) -> list[float]:
        """Return the tags of the ``count`` rows of a request that arrives now, from their tokens."""
        tag, weight, found = self._now, min(count, _SHARE), []
        for length in lengths:
            found.append(tag)
            tag += length / weight
        heapq.heappush(self._ends, (tag, weight))
        self._weight += weight
        return found

    def take(self, tag: float, tokens: int) -> None:
        """Note that a batch starts: the tag of its first row, and its tokens."""
        self._advance(self._ran)
        self._now, self._ran = max(self._now, tag), tokens

    def _advance(self, tokens: float) -> None:
        """Move on by what was computed, as if all requests that virtual time is not through with had shared it.

        A request whose rows ran early counts until then, or it would push virtual time beyond the tags of the others.
        """
        while self._ends and tokens > 0:
            end, weight = self._ends[0]
            needed = max(0.0, end - self._now) * self._weight
            self._now += min(tokens, needed) / self._weight
            if needed > tokens:
                return
            tokens -= needed
            heapq.heappop(self._ends)
            self._weight -= weight


def call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function in an event loop, from any thread; nothing happens if the loop has ended."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # the loop has ended; nobody waits
        return


def finish(works: list[Work]) -> None:
    """Set the answers of requests. Called in the event loop."""
    for work in works:
        if not work.done.done():
            work.done.set_result(None)


def refuse(work: Work, error: Exception) -> None:
    """Fail a request. Called in the event loop."""
    if not work.done.done():
        work.done.set_exception(error)
