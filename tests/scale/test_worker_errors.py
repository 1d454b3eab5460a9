"""What a worker tells of an error, without Ray: its own words, once."""

from __future__ import annotations

import errno

import pytest

from cse.errors import CseError
from cse.scale.relay import Relay
from cse.scale.train import _words
from cse.scale.train_worker import told
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
def test_an_error_is_told_and_raised(tmp_path, error, words):
    relay = Relay()
    with pytest.raises(type(error)), told(relay.fail, rank=1):
        raise error
    with pytest.raises(CseError), told(relay.fail, rank=0):
        raise CseError("later")
    assert _words(relay.failed(), tmp_path).startswith(words)
    traces = [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()]
    assert [type(error).__name__ in trace for trace in traces] == ([True] if type(error) is KeyError else [])


def test_a_lost_peer_is_another_workers_error_or_none():
    relay = Relay()
    with pytest.raises(PeerLost), told(relay.fail, rank=0):
        raise PeerLost("Connection closed by peer")
    assert relay.failed() is None
