"""Folders of one process alone, signals, and threads that look on; locks are tested where they are held."""

import signal
import threading

import pytest

from cse.errors import CseError
from cse.process import handling, only_one, throwaway_folder
from tests.rows import write_lines


def test_a_folder_goes_with_its_block_and_a_forgotten_one_with_the_next(tmp_path):
    for name in ("run-left/file", "run-left.lock", "run-ours/file", "other-left/file", "other-left.lock"):
        write_lines(tmp_path / name, [])
    mine = tmp_path / "run-mine"
    with throwaway_folder(mine, "run-*", "refused"):
        assert not (tmp_path / "run-left").exists(), "its lock is held by nobody"
        with pytest.raises(CseError, match=r"^refused$"), throwaway_folder(mine, "run-*", "refused"):
            pass
        assert mine.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-left", "other-left.lock", "run-ours"]


def test_a_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(KeyError), only_one(tmp_path / "locks/one", "refused"):
        raise KeyError
    with only_one(tmp_path / "locks/one", "refused"):
        pass
    assert not list((tmp_path / "locks").iterdir())


def test_signals_are_handled_in_the_block_of_the_main_thread_alone():
    """Python lets no other thread set them; a trial of a sweep runs in another."""
    received: list[object] = []
    before = signal.getsignal(signal.SIGTERM)
    with handling(received.append, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before

    def work() -> None:
        with handling(received.append, signal.SIGTERM):
            received.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert received == [signal.SIGTERM, signal.SIGINT, before]
