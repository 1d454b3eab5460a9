"""A peer's encoder in a process of its own (``benchmarks/peers/encoders.py``), asked to encode round by round."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cse.errors import CseError
from cse.export.precision import CALIBRATED

_PROGRAM = Path(__file__).with_name("encoders.py")
_END_SECONDS = 20.0


class EncoderProcess:
    """A running peer, one of ``KINDS``; leave the ``with`` block to end it.

    Attributes:
        facts: its way to run and batch size, the rates of those that it tried, and its versions.

    Raises:
        CseError: the peer does not run here; the message is its last line.
    """

    def __init__(self, python: Path | str, kind: str, model: Path, texts: Path, device: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        self._errors = Path(self._folder.name) / "stderr"
        given = ["--texts", str(texts), "--device", device, "--calibrated", str(CALIBRATED)]
        command = [str(python), str(_PROGRAM), kind, str(model), *given]
        environment = os.environ | {"TMPDIR": self._folder.name, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        environment.pop("PYTHONPATH", None)  # it would put our folders into another environment
        with self._errors.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )
        try:
            self.facts = self._answer()
        except BaseException:
            self.close()
            raise

    def seconds(self) -> float:
        """Encode all texts and return the seconds."""
        return float(self._ask(to=str(self._place("round.npy")))["seconds"])

    def vectors(self) -> np.ndarray:
        """Return the vectors (n, d) of the last round, of unit length."""
        return _unit(self._place("round.npy"))

    def encode(self, texts: list[str], alone: bool = False, **_: object) -> np.ndarray:
        """Return the vectors (n, d) of other texts, of unit length; ``alone``: of one text per call."""
        asked, found = self._place("texts.json"), self._place("vectors.npy")
        asked.write_text(json.dumps(texts), encoding="utf-8")
        self._ask(texts=str(asked), alone=alone, to=str(found))
        return _unit(found)

    def close(self) -> None:
        """End the process and delete its files."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()

    def __enter__(self) -> EncoderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _ask(self, **asked: Any) -> dict[str, Any]:
        if self._process.stdin is None:
            raise AssertionError
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise AssertionError
        line = self._process.stdout.readline()
        if not line:
            said = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise CseError(said[-1][:200] if said else "it ended without a word")
        return json.loads(line)


def _unit(path: Path) -> np.ndarray:
    found: np.ndarray = np.load(path)
    return found / np.linalg.norm(found, axis=1, keepdims=True)
