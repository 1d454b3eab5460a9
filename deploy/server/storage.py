"""Questions to a bank's folder, which may lie on a machine that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from cse.errors import CseError
from cse.runtime.bank import Bank
from deploy.server.errors import ServiceError
from deploy.server.logs import Troubles

SECONDS = 5.0  # that a question may take
PATIENCE = 1.0  # seconds that a question about many domains waits for one of them
_LOOK_SECONDS = 1.0
_THREADS = 512  # domains that hang at once
_T = TypeVar("_T")


class _Turn:
    """Questions about one name, answered one after another; the first has been asked ``since``."""

    def __init__(self) -> None:
        self.questions: deque[tuple[Future[object], Callable[[], object]]] = deque()
        self.since = time.monotonic()


class Storage:
    """Asks about each name on a thread of its own: a file that hangs holds up those alone who ask for it.

    The threads are daemons, so that the server's end waits for none of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, _Turn] = {}
        self._begun: SimpleQueue[str] = SimpleQueue()
        self._threads = self._idle = 0
        self._own = threading.local()
        self._troubles = Troubles()

    async def ask(self, name: str, question: Callable[[], _T]) -> _T:
        """Return the answer to a question that may look at the file of domain ``name``; "": at the folder.

        Raises:
            ServiceError: 503, it takes too long.
        """
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._submit(name, question, SECONDS)), SECONDS)
        except TimeoutError:
            self._hangs(name)
            whose = f"model {name[:80]!r}: its file" if name else "the bank's folder"
            raise unreachable(f"{whose} did not answer within {SECONDS:g} s") from None

    def look(self, name: str, question: Callable[[], _T]) -> _T:
        """Return the answer to a thread that asks about many domains.

        Raises:
            TimeoutError: it takes too long.
        """
        if getattr(self._own, "name", None) == name:
            return question()
        answer = self._submit(name, question, PATIENCE)
        try:
            return answer.result(PATIENCE)
        except TimeoutError:
            answer.cancel()
            self._hangs(name)
            raise TimeoutError("it does not answer") from None

    def _submit(self, name: str, question: Callable[[], _T], seconds: float) -> Future[_T]:
        """Queue a question; ``TimeoutError`` if the one before has been asked for so long."""
        answer: Future[_T] = Future()
        with self._lock:
            turn = self._turns.get(name)
            if turn is None and not self._idle and self._threads == _THREADS:
                raise TimeoutError("too many files do not answer")
            if turn is None:
                turn = self._turns[name] = _Turn()
                if self._idle:
                    self._idle -= 1
                else:
                    self._threads += 1
                    threading.Thread(target=self._work, name="storage", daemon=True).start()
                self._begun.put(name)
            elif time.monotonic() - turn.since > seconds:
                raise TimeoutError("it does not answer")
            turn.questions.append((answer, question))  # type: ignore[arg-type]
        return answer

    def _work(self) -> None:
        while True:
            name = self._own.name = self._begun.get()
            while (found := self._next(name)) is not None:
                answer, question = found
                if not answer.set_running_or_notify_cancel():
                    continue
                try:
                    answer.set_result(question())
                except BaseException as error:
                    answer.set_exception(error)

    def _next(self, name: str) -> tuple[Future[object], Callable[[], object]] | None:
        with self._lock:
            turn = self._turns[name]
            if turn.questions:
                turn.since = time.monotonic()
                return turn.questions.popleft()
            del self._turns[name]
            self._idle += 1
        self._troubles.ends(name)
        return None

    def _hangs(self, name: str) -> None:
        said = f"domain {name[:80]}: its file does not answer" if name else "the bank's folder does not answer"
        if name in self._turns:
            self._troubles.begins(name, said)


class Watcher:
    """A thread that sees which domains come, change and go, so that no request for ``auto`` looks at all files."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._over = self._wanted = False
        self._stir = threading.Event()
        self._first: Future[None] = Future()
        threading.Thread(target=self._watch, name="watcher", daemon=True).start()

    async def ready(self, seconds: float) -> None:
        """Return when the centres of all domains were read once, well or not; nobody else waits meanwhile.

        Raises:
            ServiceError: 503, it takes longer.
        """
        if not self._first.done():
            self._wanted = True
            self._stir.set()
            await asyncio.wait([asyncio.wrap_future(self._first)], timeout=seconds)
            if not self._first.done():
                raise unreachable(f"the bank's folder did not answer within {seconds:g} s")

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


def unreachable(why: str) -> ServiceError:
    """Return the refusal of a request that needs a file or the folder."""
    return ServiceError(503, why, code="bank_unreachable", retry_after=1)
