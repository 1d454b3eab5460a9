"""What a stage's process ends with."""

import errno
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

from cse.errors import CseError, Interrupted, OfflineError
from cse.outputs import Kind, publish_folder
from cse.stages.common import run_safely
from tests.cli.workspace import contents


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
    assert run_safely(Mock(side_effect=error)) == code
    assert says in capsys.readouterr().err


def test_a_terminated_stage_says_so_and_leaves_no_draft(tmp_path):
    """A process of its own, which SIGTERM reaches while an output is on its way."""
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from cse.outputs import Kind, publish_folder\n"
        "from cse.stages.common import run_safely\n"
        "def work():\n"
        "    with publish_folder(Path('out'), Kind.PLOTS) as folder:\n"
        "        (folder / 'new').write_text('new')\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "sys.exit(run_safely(work))\n"
    )
    with publish_folder(tmp_path / "out", Kind.PLOTS) as folder:
        (folder / "old").write_text("old")
    before = contents(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr == "SIGTERM: stopped; finished results are untouched\n"
    assert contents(tmp_path) == before
