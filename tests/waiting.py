"""Waiting for what real processes do."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    there: Callable[[], Any], seconds: float = 900.0, tell: Callable[[], str] = str, every: float = 0.1
) -> Any:
    """Return what ``there()`` gives as soon as it is true; fail with what ``tell()`` says when it is not in time."""
    end = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < end, f"not within {seconds:g} s\n{tell()}"
        time.sleep(every)
    return found
