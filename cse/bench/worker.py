"""Runs side by side: what a worker keeps from one to the next, and what becomes of a run that fails."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from cse.errors import reason_of
from cse.files import fingerprint
from cse.model.backbone import Backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import is_word_file
from cse.ray_session import free_in_words, largest_crew, ray_session
from cse.settings import Settings
from cse.training.encoder import open_language_model

MOST_LOSSES = 2  # lost workers before a run is given up


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
    do: Callable[[str], object], names: Sequence[str], *, at_once: int | None, unit: str, done: str
) -> Iterator[tuple[str, str]]:
    """Do runs side by side with Ray; say what became of each as it ends, and yield its name and why it failed.

    If a worker is lost, its run starts again on another one, and resumes if it saves its state.

    Args:
        do: does the run of a name; an error fails that run alone.
        at_once: most workers; None: one for each CPU, or for each GPU if there are any.
        done: what is said of a run that did not fail.
    """
    if not names:
        return
    with ray_session() as ray, tqdm(total=len(names), unit=unit, disable=not sys.stderr.isatty()) as bar:
        crew = largest_crew(ray, at_once, len(names))
        if ray.available_resources().get("CPU", 0) < crew.workers * crew.cpus:
            bar.write(f"{crew.workers} workers wait for {crew} of one machine each; {free_in_words(ray)}", sys.stderr)
        # `max_calls` 0: a worker keeps what it loaded
        task = ray.remote(num_cpus=crew.cpus, num_gpus=crew.gpus, max_retries=0, max_calls=0)(do_run)
        todo, busy, losses = list(names), dict[Any, str](), Counter[str]()
        while todo or busy:
            while todo and len(busy) < crew.workers:
                name = todo.pop(0)
                busy[task.remote(do, name, crew.cpus)] = name
            ended, _ = ray.wait([*busy], num_returns=1)
            for reply in ended:
                name = busy.pop(reply)
                try:
                    reason = ray.get(reply)
                except ray.exceptions.RayError:  # its process died, or ran out of memory
                    losses[name] += 1
                    if losses[name] <= MOST_LOSSES:
                        todo.append(name)
                        continue
                    reason = f"its worker died {losses[name]} times, killed externally or out of memory"
                bar.update()
                bar.write(f"{name}: {reason or done}", file=sys.stderr)
                yield name, reason


def do_run(do: Callable[[str], object], name: str, threads: int) -> str:
    """Do a run in a worker and return why it failed, empty if it did not."""
    torch.set_num_threads(threads)
    try:
        do(name)
    except Exception as error:
        return reason_of(error)
    return ""
