"""What a worker leaves of an error, without Ray: its own words, once."""

from __future__ import annotations

import errno

import pytest

from cse.errors import CseError
from cse.scale.train import _told
from cse.training.group import PeerLost


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (CseError("train.learning_rate: the loss is nan"), "train.learning_rate: the loss is nan"),
        (OSError(errno.ENOSPC, "No space left on device", "state.pt"), "no space left while writing state.pt"),
        (KeyError("a bug"), "worker 1 failed: KeyError: 'a bug' (trace in "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_written_down_and_raised(tmp_path, error, words):
    with pytest.raises(type(error)), _told(tmp_path, rank=1):
        raise error
    with pytest.raises(CseError), _told(tmp_path, rank=0):
        raise CseError("later")
    assert (tmp_path / "failed.txt").read_text(encoding="utf-8").startswith(words)
    assert f"{type(error).__name__}: " in (tmp_path / "trace.txt").read_text(encoding="utf-8")


def test_a_lost_peer_is_another_workers_error_or_none(tmp_path):
    with pytest.raises(PeerLost), _told(tmp_path, rank=0):
        raise PeerLost("Connection closed by peer")
    assert not list(tmp_path.iterdir())
