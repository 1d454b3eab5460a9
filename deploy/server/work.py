"""The rows of requests, on their way through the queue and back to the event loop that waits for them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cse.runtime.domain import Domain
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.tokens import Tokens


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
