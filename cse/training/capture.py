"""A step on a GPU as one captured graph of its kernels: replaying it costs a launch instead of thousands.

A graph computes on the memory and the shapes that it was captured with. So batches are padded to few shapes
(``Batcher.stage``), each shape has a graph, and all graphs share one pool of memory. Dropout follows from torch's
generator, whose seed a replay reads: a replayed step draws what the same step would draw without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from cse.losses.group import Group
from cse.model.passes import as_parts, in_one, on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import Staged
from cse.training.losses import Losses

Terms = dict[str, torch.Tensor]
Update = Callable[[Staged, Sequence[torch.Tensor]], Terms]


class Captured:
    """Runs a step's part on the device: as it is for the first batch of a shape, then as a graph.

    Args:
        update: takes a staged batch and its tensors, updates the weights and returns the loss and its terms. What it
            does on the host, it does twice for each shape, and no more.
    """

    def __init__(self, update: Update, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.update, self.optimizer, self.device = update, optimizer, device
        self.rates = [torch.zeros((), device=device) for _ in optimizer.param_groups]
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[object, tuple[torch.cuda.CUDAGraph, torch.Tensor, Terms] | None] = {}

    def __call__(self, staged: Staged) -> Terms:
        """Run a step and return the loss and its terms, which the next step overwrites."""
        # the first makes what a graph must not: workspaces, kernels, the optimiser's state
        if staged.shape not in self.graphs:
            self._make_room()
            self.graphs[staged.shape] = None
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):  # the one that captures: gradients keep to the stream of their first
                terms = self.update(staged, on_device(staged.arrays, self.device))
            torch.cuda.current_stream().wait_stream(self.stream)
            return terms
        found = self.graphs[staged.shape] or self._capture(staged)
        self.graphs[staged.shape] = found
        graph, given, terms = found
        given.copy_(in_one(staged.arrays), non_blocking=True)
        for rate, weighted in zip(self.rates, self.optimizer.param_groups, strict=True):
            rate.fill_(weighted["lr"])
        graph.replay()
        return terms

    def _make_room(self) -> None:
        """Give the graphs up if there is no room for a step beside them; they are captured again."""
        free, _ = torch.cuda.mem_get_info(self.device)
        if self.graphs and free < torch.cuda.memory_reserved(self.device):
            self.graphs, self.pool = {}, torch.cuda.graph_pool_handle()
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()

    def _capture(self, staged: Staged) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, Terms]:
        given, graph = in_one(staged.arrays).to(self.device, non_blocking=True), torch.cuda.CUDAGraph()
        tensors = as_parts(given, staged.arrays)
        with self._rates_on_device(), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            terms = {name: value.detach() for name, value in self.update(staged, tensors).items()}
        return graph, given, terms

    @contextmanager
    def _rates_on_device(self) -> Iterator[None]:
        groups = self.optimizer.param_groups
        kept = [(weighted["lr"], weighted["capturable"]) for weighted in groups]
        for weighted, rate in zip(groups, self.rates, strict=True):
            weighted["lr"], weighted["capturable"] = rate, True
        try:
            yield
        finally:
            for weighted, (rate, capturable) in zip(groups, kept, strict=True):
                weighted["lr"], weighted["capturable"] = rate, capturable


def why_not(
    encoder: SentenceEncoder,
    losses: Losses,
    settings: TrainSettings,
    augment: AugmentSettings,
    device: torch.device,
    group: Group,
) -> str:
    """Return the setting for which a training's steps are not captured, or an empty string.

    A graph can hold neither what depends on numbers of the host nor what waits for the device; of all else, what was
    not tried is left out.
    """
    prompt = encoder.prompt
    fixed = {
        "train.device": device.type == "cuda",
        "train.workers": group.size == 1,
        "train.optimizer": settings.optimizer == "adamw",
        "train.mini_batch_size": settings.mini_batch_size is None,
        "train.parameters": encoder.frozen,
        "prompt.init": prompt is None or prompt.network is None,
        "augment": augment.shuffle_tokens == "none" and augment.cut_features == 0.0,
        "template.denoise": encoder.denoise == "none",
    } | {f"objective.{name}": term.from_tensors for name, term in losses.named_terms()}
    return next((name for name, possible in fixed.items() if not possible), "")
