"""How a stage's output is read: the state that Prefect shows, the reason for a failure, whether to retry."""

import os
import signal
import subprocess
import sys

import pytest

from flows.processes import CommandError, explain, run_dvc
from flows.stages import EXECUTED, RESTORED, SKIPPED, outcome_in
from tests.flows.repositories import write
from tests.waiting import wait_for


def reproduce(root, stage: str) -> list[str]:
    """Run a stage and return its lines."""
    lines: list[str] = []
    run_dvc(["repro", "--single-item", stage], root, lines.append)
    return lines


def test_the_three_states_by_real_dvc(repository):
    """The words are DVC's, so DVC says them here."""

    def outcome() -> str:
        return [SKIPPED, *filter(None, (outcome_in(line, "first") for line in reproduce(repository, "first")))][-1]

    assert (outcome(), outcome()) == (EXECUTED, SKIPPED)
    (repository / "data/first.txt").unlink()
    assert outcome() == RESTORED
    lock = (repository / "dvc.lock").read_text()
    (repository / "source.txt").write_text("another\n")
    assert outcome() == EXECUTED
    (repository / "source.txt").write_text("text\n")
    assert outcome() == RESTORED, "an earlier result of the same input"
    assert (repository / "dvc.lock").read_text() == lock


@pytest.mark.parametrize(
    ("command", "says", "later"),
    [
        ("echo 'error: train.epochs is 0; give more' >&2; exit 2", "second: train.epochs is 0; give more", False),
        ("echo 'error: the hub cannot be reached' >&2; exit 75", "second: the hub cannot be reached", True),
        ("kill -9 $$", "killed from outside (SIGKILL); ", True),
        ("echo Traceback; echo KeyError; exit 1", "unexpected error (exit code 1)", False),
        ("true", "DVC says: ", False),  # it makes no output
    ],
)
def test_why_and_whether_to_try_again(repository, command, says, later):
    write(repository / "work.sh", command)
    yaml = (repository / "dvc.yaml").read_text().replace("cp data/first.txt data/second.txt", "sh work.sh")
    write(repository / "dvc.yaml", yaml)
    write(repository / "data/first.txt", "text")
    with pytest.raises(CommandError) as caught:
        reproduce(repository, "second")
    message, again = explain("second", caught.value.code, caught.value.last_lines)
    assert message.startswith("second: ") and says in message and again is later


def test_another_dvc_in_the_way(repository):
    """Real DVC holds the files of the stage while its command runs."""
    slow = (repository / "dvc.yaml").read_text().replace("cp source.txt", "touch started; sleep 60; cp source.txt")
    (repository / "dvc.yaml").write_text(slow)
    holder = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "first"], cwd=repository, start_new_session=True)
    try:
        wait_for((repository / "started").exists, 60)
        with pytest.raises(CommandError) as caught:
            reproduce(repository, "first")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    message, again = explain("first", caught.value.code, caught.value.last_lines)
    assert again and f"(PID {holder.pid})" in message
