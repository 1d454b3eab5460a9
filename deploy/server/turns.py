"""Whose turn it is: virtual time, as in weighted fair queueing (Demers, Keshav and Shenker 1989).

A request's rows are tagged with the virtual time of its arrival plus the tokens before them by its weight. Virtual time
moves on by the tokens computed by the weight of all requests, as fast as the tags of each: so a request of many texts
does not hold up one of a single text, and does not starve either.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

_SHARE = 8  # a request of many texts weighs as much as this many of one


class Turns:
    """Virtual time, at the start of the last batch."""

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
