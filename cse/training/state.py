"""The state that a killed run needs to resume, replaced atomically, and the weights that are saved in the end."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cse.outputs import publish_file


@dataclass
class RunState:
    """Everything that determines how a run continues after ``step`` updates.

    Attributes:
        best_score: best dev score so far (Spearman * 100), including the initial one; None without selection.
        best_weights: of the encoder, with that score; without one, with their share of the initial weights once the run
            has ended; empty: the last.
        evaluations: ``(step, dev score)`` of every evaluation, starting with the initial weights (step 0).
    """

    step: int = 0
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    memory: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    best_score: float | None = None
    best_step: int = 0
    best_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    stale: int = 0


class RunFolder:
    """The scratch folder of one run, named by a fingerprint of its settings, data and code, with its state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._writer = ThreadPoolExecutor(1, "save")
        self._writing: Future[None] | None = None

    def load(self) -> RunState | None:
        """Return the last saved state, or None if no complete one exists."""
        try:
            return RunState(**torch.load(self.path / "state.pt", map_location="cpu", weights_only=True))
        except (FileNotFoundError, RuntimeError, EOFError, pickle.UnpicklingError):
            return None

    def save(self, state: RunState | None, *, behind: bool = False) -> None:
        """Replace the saved state, None on all workers but the first; a kill leaves the old or the new one whole.

        Args:
            behind: return while a thread writes the state, whose tensors nobody changes any more.
        """
        self.wait()
        state = state and replace(state, evaluations=[*state.evaluations])
        self._writing = self._writer.submit(self._write, state)
        if not behind:
            self.wait()

    def wait(self) -> None:
        """Wait until what is written behind is on the disk; raise its error."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def _write(self, state: RunState | None) -> None:
        if state is not None:
            with publish_file(self.path / "state.pt") as draft, draft.open("wb") as stream:
                torch.save(vars(state), stream)

    def remove(self) -> None:
        """Delete the folder once its result is published."""
        self.wait()
        shutil.rmtree(self.path, ignore_errors=True)


class InitialShare:
    """Mixes the initial weights in (WiSE-FT, Wortsman et al. 2022: 1 - alpha); a share of 0 costs nothing."""

    def __init__(self, weights: Mapping[str, torch.Tensor], share: float) -> None:
        self.weights, self.share = weights, share
        self.initial: dict[str, torch.Tensor] = {}
        self.start()

    def start(self) -> None:
        """Begin again at the weights as they are."""
        self.initial = _copies(self.weights) if self.share > 0.0 else {}

    @torch.no_grad()
    def result(self) -> dict[str, torch.Tensor]:
        """Return the weights to score and save by name; empty if they are the weights themselves."""
        return {name: torch.lerp(self.weights[name], start, self.share) for name, start in self.initial.items()}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the result where the weights are."""
        result = self.result()
        if not result:
            yield
            return
        kept = _copies(self.weights)
        copy_into(self.weights, result)
        try:
            yield
        finally:
            copy_into(self.weights, kept)


@torch.no_grad()
def copy_into(weights: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    """Give every weight the value of its name, in place."""
    for name, weight in weights.items():
        weight.copy_(values[name])


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}
