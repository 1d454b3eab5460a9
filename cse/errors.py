"""Errors that users can cause, and the code that shows them as one line."""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# name of a draft next to an output, see ``cse.outputs``
DRAFT = re.compile(r"\.(?P<of>[^/]+)\.cse-(?:tmp|old)-(?P<mark>(?P<host>\w+)-(?P<pid>\d+)-\d+)")
_DRAFT_IN_PATH = re.compile(rf"(^|/){DRAFT.pattern}(?![^/])")
# control characters, line and paragraph separators, bidirectional controls, lone surrogates
_COMMANDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_MOST_KNOWN = 5000  # names that another one is compared with


class CseError(ValueError):
    """A mistake that the user can fix; the message is one line: what, where, what to do."""


class OfflineError(CseError):
    """The hub is unreachable and nothing usable is cached."""


class Interrupted(BaseException):
    """A termination signal arrived and the state is saved; ``number`` is the signal number.

    Not an ``Exception``: it may be raised anywhere, also where a library's errors are turned into lines.
    """

    def __init__(self, number: int, done: str) -> None:
        super().__init__(f"{signal.Signals(number).name} {done}: state saved; run the same command again to resume")
        self.number = number


class Terminated(BaseException):
    """SIGTERM arrived where no state is saved; ``with`` blocks clean up on the way out."""


@contextmanager
def in_terms_of(new: str, old: str = "", hint: str = "") -> Iterator[None]:
    """Let a mistake inside speak of ``new`` where it first speaks of ``old``, and end with a hint.

    Without ``old``, ``new`` goes before all that it says.
    """
    try:
        yield
    except CseError as error:
        raise type(error)(str(error).replace(old, new, 1) + hint) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or ``""`` if none is close."""
    some = list(islice(known, _MOST_KNOWN))
    match = difflib.get_close_matches(name[:100], some, n=1, cutoff=0.6)  # its cost grows with both
    return f"; did you mean {match[0]!r}?" if match else ""


def printable(text: str) -> str:
    """Return foreign text without terminal controls and text-direction marks; line ends stay."""
    return _COMMANDS.sub(lambda match: " " if match[0].isspace() else "\ufffd", text)


def escaped(json_text: str) -> str:
    """Return JSON of the same meaning without terminal controls and text-direction marks."""
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


def shown_on_page(value: Any) -> Any:
    """Return what a template shows for a value (Jinja's ``finalize``): strings made printable, all else unchanged."""
    return printable(value) if type(value) is str else value


def one_line(text: str) -> str:
    """Return foreign text as one printable line."""
    return " ".join(printable(text).split())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def error_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return one_line(describe_os_error(error) if isinstance(error, OSError) else str(error))


def reason_of(error: Exception) -> str:
    """Return in one line why a run failed: what a mistake says, the kind of any other error too."""
    if isinstance(error, CseError | OSError):
        return error_line(error)
    return one_line(f"{type(error).__name__}: {error}")[:300]


def is_full_disk(error: BaseException) -> bool:
    """Return whether a write failed for lack of space: the request is fine and may succeed later."""
    return isinstance(error, OSError) and error.errno in _FULL_DISK


def full_disk_in(text: str) -> int | None:
    """Return the error number of a full disk that a message speaks of: of another process, or of a library's own."""
    return next((number for number in sorted(_FULL_DISK) if os.strerror(number) in text), None)


def describe_os_error(error: OSError) -> str:
    """Describe an operating system error for the user in one line."""
    place = error.filename2 or error.filename  # of a copy the target: what is read is seldom at fault
    name = _DRAFT_IN_PATH.sub(r"\1\g<of>", os.fsdecode(place)) if isinstance(place, str | bytes | os.PathLike) else ""
    where = f" {name}" if name else ""
    if error.errno in _FULL_DISK:
        return (
            f"no space left while writing{where} ({os.strerror(error.errno)}): free some space and run again; "
            "finished results are intact"
        )
    if error.errno == errno.EROFS and name:
        return f"{name}: read-only file system, nothing was written; choose another place"
    return f"{error.strerror or error}{':' + where if where else ''}"
