"""A worker that imports little: where a test defines its own, each of Ray's processes imports the test, and torch."""

from __future__ import annotations

import time

from cse.errors import CseError


class Echo:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, name: str) -> str:
        time.sleep(1)
        return f"{name} on {self.threads}"


def fail_with_threads(name: str) -> None:
    """The reason of a run's failure is all that comes back of it."""
    import torch

    raise CseError(f"{name} on {torch.get_num_threads()}")
