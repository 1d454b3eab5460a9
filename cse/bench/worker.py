"""Runs side by side: what a worker keeps from one to the next, and what becomes of a run that fails."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from cse.errors import CseError, error_line, one_line
from cse.files import fingerprint
from cse.model.backbone import Backbone
from cse.model.backbone_files import find_backbone
from cse.model.named import is_word_file
from cse.scale.side_by_side import side_by_side
from cse.settings import Settings
from cse.stages.open_backbone import open_language_model


class RunWorker(ABC):
    """Does one run after the other in its own process.

    Args:
        threads: CPU threads to use.
    """

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    @abstractmethod
    def do(self, name: str) -> None:
        """Do a run."""

    def run(self, name: str) -> str:
        """Do a run and return why it failed, empty if it did not; an error fails only this run."""
        try:
            self.do(name)
        except Exception as error:
            return reason_of(error)
        return ""


class Backbones:
    """The frozen backbone of a worker's trainings, loaded once."""

    def __init__(self) -> None:
        self._opened: dict[str, Backbone] = {}  # one at most

    def of(self, settings: Settings) -> Backbone | None:
        """Return an instance for one training, which shares the loaded weights.

        Each training gets its own, because one that is stopped or runs out of memory leaves its backbone in an
        arbitrary state, perhaps on a GPU. None: the training must load its own.

        Raises:
            CseError: what ``find_backbone`` and ``open_language_model`` raise.
        """
        backbone, pooler = settings.backbone, settings.pooler
        if settings.train.parameters != "prompts" or is_word_file(Path(backbone.name)):
            return None
        key = fingerprint({"backbone": backbone.model_dump(), "pooler": pooler.kind})
        if key not in self._opened:
            self._opened.clear()
            files = find_backbone(backbone.name, backbone.revision)
            self._opened[key] = open_language_model(files, backbone, pooler)
        return self._opened[key].sibling()


def work_through(
    worker: type[RunWorker],
    given: Callable[[int], Sequence[Any]],
    names: Sequence[str],
    *,
    at_once: int | None,
    unit: str,
    done: str = "done",
    afresh: bool = False,
) -> Iterator[tuple[str, str]]:
    """Do runs side by side; say what became of each as it ends, and yield its name and why it failed.

    If a worker is lost, its run starts again on a new one, and resumes if it saves its state.

    Args:
        worker: class of the workers.
        given: returns the arguments of the class, given the CPU threads of each worker.
        names: of the runs, in their order.
        at_once: workers; None: one for each CPU, or for each GPU if there are any.
        unit: what a run is called.
        done: what is said of a run that did not fail.
        afresh: whether each run gets a new process.
    """
    with tqdm(total=len(names), unit=unit, disable=not sys.stderr.isatty()) as bar:
        for ended in side_by_side(worker, given, list(names), at_once=at_once, afresh=afresh) if names else ():
            reason = ended.lost or ended.result
            bar.update()
            bar.write(f"{ended.name}: {reason or done}", file=sys.stderr)
            yield ended.name, reason


def reason_of(error: Exception) -> str:
    """Return in one line why a run failed: what a mistake says, the kind of any other error too."""
    if isinstance(error, CseError | OSError):
        return error_line(error)
    return one_line(f"{type(error).__name__}: {error}")[:300]
