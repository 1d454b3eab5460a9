"""Questions to a bank's folder, which may lie on a machine that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from cse.errors import CseError
from cse.runtime.bank import Bank
from deploy.server.errors import ServiceError

SECONDS = 5.0  # that a question may take
_LOOK_SECONDS = 1.0
_T = TypeVar("_T")


class Storage:
    """Asks beside the event loop.

    Attributes:
        threads: where questions are asked; nothing else waits for them.
    """

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="storage")

    def close(self) -> None:
        """Ask nothing more."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Callable[..., _T], *arguments: object) -> _T:
        """Return what ``question(*arguments)`` returns.

        Raises:
            ServiceError: 503, it takes too long.
        """
        return await in_time(asyncio.get_running_loop().run_in_executor(self.threads, question, *arguments))


class Watcher:
    """A thread that sees which domains come, change and go, so that no request for ``auto`` looks at all files."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._over = self._wanted = False
        self._stir = threading.Event()
        self._first: Future[None] = Future()
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    async def ready(self) -> None:
        """Return when the centres of all domains were read once, well or not; nobody else waits meanwhile."""
        if not self._first.done():
            self._wanted = True
            self._stir.set()
            await asyncio.shield(asyncio.wrap_future(self._first))

    def close(self) -> None:
        """Look no more."""
        self._over = True
        self._stir.set()

    def _watch(self) -> None:
        while not self._over:
            if self._wanted:
                with contextlib.suppress(CseError):  # the next request says it
                    self._bank.centres()
                if not self._first.done():
                    self._first.set_result(None)
            self._stir.wait(_LOOK_SECONDS)
            self._stir.clear()


async def in_time(answer: Awaitable[_T]) -> _T:
    """Return an answer that needs the folder.

    Raises:
        ServiceError: 503, it does not come in time.
    """
    try:
        return await asyncio.wait_for(answer, SECONDS)
    except TimeoutError:
        raise unreachable(f"did not answer within {SECONDS:g} s") from None


def unreachable(why: str) -> ServiceError:
    """Return the refusal of a request that needs the folder."""
    return ServiceError(503, f"the bank's folder {why}", code="bank_unreachable", retry_after=1)
