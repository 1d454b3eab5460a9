"""A worker that imports nothing: where a test defines its own, each of Ray's processes imports the test, and torch."""

from __future__ import annotations

import time


class Echo:
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def run(self, name: str) -> str:
        time.sleep(1)
        return f"{name} on {self.threads}"
