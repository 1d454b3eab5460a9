"""Errors that a user can cause, and the one place that turns them into one line."""

from __future__ import annotations

import difflib
import errno
import os
import signal
from collections.abc import Iterable

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class CseError(ValueError):
    """A mistake that a user can mend: one line saying what, where and what to do."""


class OfflineError(CseError):
    """A hub could not be reached and nothing usable was cached."""


class Interrupted(Exception):  # noqa: N818 - not an error: the run can go on
    """A termination signal arrived and the state is saved; ``number`` is the signal's."""

    def __init__(self, number: int, done: str) -> None:
        super().__init__(f"{signal.Signals(number).name} {done}: state saved, the same command goes on from there")
        self.number = number


class Terminated(BaseException):
    """SIGTERM arrived where nothing saves a state; what is on its way out of ``with`` blocks is tidied up."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or ``""`` where none is near."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""


def describe_os_error(error: OSError) -> str:
    """Say what an operating system error means for the user, in one line."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno in _FULL_DISK:
        return (
            f"no space left while writing{where} ({os.strerror(error.errno)}): free some space and run again; "
            "what was finished before is untouched"
        )
    return f"{error.strerror or error}{':' + where if where else ''}"
