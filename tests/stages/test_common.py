"""What a stage's process ends with."""

from __future__ import annotations

import errno
import signal

import pytest

from cse.errors import CseError, Interrupted, OfflineError
from cse.stages.common import run_safely


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (CseError("train.epochs: give more"), 2, "error: train.epochs: give more"),
        (OfflineError("the hub cannot be reached"), 75, "error: the hub cannot be reached"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: no space left while writing"),
        (Interrupted(signal.SIGTERM, "at step 5"), 143, "SIGTERM at step 5: state saved"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
)
def test_exit_codes(error, code, says, capsys):
    def work() -> None:
        raise error

    assert run_safely(work) == code
    assert says in capsys.readouterr().err


def test_success():
    assert run_safely(lambda: None) == 0
