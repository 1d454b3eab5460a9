"""Runs side by side: what a worker keeps from one to the next, and what becomes of a run that fails."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from cse.errors import reason_of
from cse.files import fingerprint
from cse.model.backbone import Backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import is_word_file
from cse.ray_session import ray_session
from cse.scale.side_by_side import largest_crew, share_out
from cse.settings import Settings
from cse.training.encoder import open_language_model


class RunWorker:
    """Does one run after the other in its own process; an error fails only its run.

    Args:
        do: does the run of a name, and returns why it failed if that is on record; what it keeps serves the next one.
    """

    def __init__(self, do: Callable[[str], str | None], threads: int) -> None:
        torch.set_num_threads(threads)
        self.do = do

    def run(self, name: str) -> str:
        """Do a run and return why it failed, empty if it did not."""
        try:
            return self.do(name) or ""
        except Exception as error:
            return reason_of(error)


class Backbones:
    """The frozen backbone of a worker's trainings, loaded once."""

    def __init__(self) -> None:
        self._opened: dict[str, Backbone] = {}  # one at most

    def of(self, settings: Settings) -> Backbone | None:
        """Return an instance for one training, which shares the loaded weights.

        Each training gets its own, because one that is stopped or runs out of memory leaves its backbone in an
        arbitrary state, perhaps on a GPU. None: the training must load its own.
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
    do: Callable[[str], str | None],
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
        do: as ``RunWorker`` takes it; each worker gets a copy.
        names: of the runs, in their order.
        at_once: workers; None: one for each CPU, or for each GPU if there are any.
        done: what is said of a run that did not fail.
        afresh: whether each run gets a new process; otherwise a worker keeps what it loaded, and the memory of its
            largest run.
    """
    if not names:
        return
    with ray_session() as ray, tqdm(total=len(names), unit=unit, disable=not sys.stderr.isatty()) as bar:
        crew = largest_crew(ray, at_once, len(names))
        worker = ray.remote(num_cpus=crew.cpus, num_gpus=crew.gpus)(RunWorker)
        jobs = ((name, (name,)) for name in names)
        for ended in share_out(ray, lambda: worker.remote(do, crew.cpus), jobs, crew, afresh=afresh):
            reason = ended.lost or ended.result
            bar.update()
            bar.write(f"{ended.name}: {reason or done}", file=sys.stderr)
            yield ended.name, reason
