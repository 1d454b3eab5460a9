"""Errors that a user can cause, and the one place that turns them into one line."""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
from collections.abc import Iterable
from typing import Any

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# the name of an output that is written beside its place, see cse.outputs
_DRAFT = re.compile(r"(^|/)\.([^/]+)\.cse-(?:tmp|old)-\w+-\d+-\d+(?![^/])")
# control characters, line and paragraph separators, embeddings and overrides of direction, halves of characters
_COMMANDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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


def printable(text: str) -> str:
    """Return a text of somebody else's without what commands a terminal or turns a page around; line ends stay."""
    return _COMMANDS.sub(lambda match: " " if match[0].isspace() else "\ufffd", text)


def shown_on_page(value: Any) -> Any:
    """Return what a template shows for a value (``finalize`` of Jinja): texts that are printable, all else as it is."""
    return printable(value) if type(value) is str else value


def one_line(text: str) -> str:
    """Return a text of somebody else's as it may stand in a table or in a line."""
    return " ".join(printable(text).split())


def error_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return one_line(describe_os_error(error) if isinstance(error, OSError) else str(error))


def is_full_disk(error: BaseException) -> bool:
    """Return whether a write found no room: nothing that was asked for is wrong, and it may succeed later."""
    return isinstance(error, OSError) and error.errno in _FULL_DISK


def tells_of_full_disk(text: str) -> bool:
    """Return the same for an error of another process, by its words."""
    return any(os.strerror(number) in text for number in _FULL_DISK)


def describe_os_error(error: OSError) -> str:
    """Say what an operating system error means for the user, in one line."""
    known = isinstance(error.filename, str | bytes | os.PathLike)
    name = _DRAFT.sub(r"\1\2", os.fsdecode(error.filename)) if known else ""
    where = f" {name}" if name else ""
    if error.errno in _FULL_DISK:
        return (
            f"no space left while writing{where} ({os.strerror(error.errno)}): free some space and run again; "
            "what was finished before is untouched"
        )
    if error.errno == errno.EROFS and name:
        return f"{name}: the file system is read-only; nothing was written, choose another place"
    return f"{error.strerror or error}{':' + where if where else ''}"
