"""Linear classifiers on frozen embeddings, many at once: SentEval's torch classifier (Conneau and Kiela 2018).

A transfer task needs hundreds of classifiers on subsets of the same rows, one per fold and L2 value. They are trained
as one batch of problems, with one batched matrix product per step. Each classifier sees the same rows in the same order
and stops at the same point as in SentEval's one-at-a-time loop, seeds included; ``fit`` with one problem is that loop.

Shapes: N rows, D columns, P problems, R L2 values per problem, C classes, B rows per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Classifier:
    """How a classifier is trained, by Adam at a rate of 1e-3; the defaults give published figures, as SentEval does.

    Attributes:
        tenacity: training ends at the validation after this many without improvement.
        l2: values to choose from, coupled weight decay on weights and bias; the first of the best wins.
        seed: of weights, folds and row order, reset for each classifier.
    """

    batch_size: int = 64
    epoch_size: int = 4
    tenacity: int = 5
    folds: int = 10
    max_epoch: int = 200
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    seed: int = 1111

    def describe(self) -> str:
        """Return the setting as one line."""
        return (
            f"linear classifier, {self.folds} folds, adam, batch {self.batch_size}, at most "
            f"{self.max_epoch} passes, L2 from {', '.join(f'{value:g}' for value in self.l2)}, seed {self.seed}"
        )


FULL = Classifier()


@dataclass
class Problem:
    """Training rows of one classifier, and validation rows for early stopping; None: a random 5 %, as in SentEval."""

    train: np.ndarray
    dev: np.ndarray | None
    l2: tuple[float, ...]


@dataclass
class Fitted:
    """A problem's classifiers, one per L2 value, with the weights of their best validation."""

    weight: torch.Tensor  # (R, C, D)
    bias: torch.Tensor  # (R, C)
    dev_accuracy: np.ndarray  # (R,), from 0 to 1

    def predict(self, features_ND: torch.Tensor) -> torch.Tensor:
        """Return classes ``(R, N)``."""
        return torch.stack([(features_ND @ w.T + b).argmax(dim=1) for w, b in zip(self.weight, self.bias, strict=True)])


def fit(
    features: np.ndarray,
    label: np.ndarray,
    problems: Sequence[Problem],
    how: Classifier = FULL,
    *,
    device: torch.device | None = None,
    advance: Callable[[int], object] | None = None,
) -> list[Fitted]:
    """Train every problem's classifiers on its rows of features ``(N, D)`` with classes from 0 ``(N,)``.

    All problems have the same number of L2 values.
    """
    device = device or torch.device("cpu")
    features_ND = torch.as_tensor(features, dtype=torch.float32, device=device)
    label_N = torch.as_tensor(label, dtype=torch.int64, device=device)
    classes = int(label.max()) + 1
    runs = [_Run(index, problem, how) for index, problem in enumerate(problems)]
    fitted: dict[int, Fitted] = {}
    # the optimiser steps for all at once, so problems grouped here have the same number of steps per pass
    for steps in sorted({run.steps for run in runs}):
        together = [run for run in runs if run.steps == steps]
        fitted |= _Stack(features_ND, label_N, classes, together, how).train(advance)
    return [fitted[index] for index in range(len(problems))]


class _Run:
    """The random draws of a problem: rows held out, and the row order of each pass."""

    def __init__(self, index: int, problem: Problem, how: Classifier) -> None:
        self.index = index
        self.l2 = problem.l2
        self.rng = np.random.RandomState(how.seed)  # SentEval's generator
        self.train, self.dev = problem.train, problem.dev
        if problem.dev is None:
            order = self.rng.permutation(len(problem.train))
            held_out = int(0.05 * len(problem.train))
            self.train, self.dev = problem.train[order[held_out:]], problem.train[order[:held_out]]
        self.steps = -(-len(self.train) // how.batch_size)

    def next_pass(self, padded: int) -> np.ndarray:
        """Return the rows of the next pass, padded with ``-1``."""
        rows = np.full(padded, -1)
        rows[: len(self.train)] = self.train[self.rng.permutation(len(self.train))]
        return rows


class _Stack:
    """Problems that are trained together."""

    def __init__(
        self, features_ND: torch.Tensor, label_N: torch.Tensor, classes: int, runs: list[_Run], how: Classifier
    ) -> None:
        self.features_ND, self.label_N, self.classes, self.runs, self.how = features_ND, label_N, classes, runs, how
        device = features_ND.device
        problems, kinds, width = len(runs), len(runs[0].l2), features_ND.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(how.seed)
            first = torch.nn.Linear(width, classes)  # every classifier starts from these weights
        weight = first.weight.detach().T.repeat(1, kinds).expand(problems, -1, -1)
        self.weight_PDO = weight.contiguous().to(device)  # O = R * C
        self.bias_P1O = first.bias.detach().repeat(kinds).expand(problems, 1, -1).contiguous().to(device)
        l2_PR = torch.tensor([run.l2 for run in runs], dtype=torch.float32, device=device)
        self.decay_P1O = l2_PR.repeat_interleave(classes, dim=1).unsqueeze(1)
        self.best_weight_PDO, self.best_bias_P1O = self.weight_PDO.clone(), self.bias_P1O.clone()
        self.best_PR = np.full((problems, kinds), -1.0)
        self.worse_PR = np.zeros((problems, kinds), dtype=int)
        self.open_PR = np.ones((problems, kinds), dtype=bool)
        self.optimizer = self._make_optimizer()

    def train(self, advance: Callable[[int], object] | None) -> dict[int, Fitted]:
        """Train until all have stopped; return the results by problem number."""
        fitted: dict[int, Fitted] = {}
        passes = 0
        while self.runs and passes <= self.how.max_epoch:
            for _ in range(self.how.epoch_size):
                self._one_pass()
            passes += self.how.epoch_size
            self._look()
            if passes > self.how.max_epoch:
                self.open_PR[:] = False
            done = ~self.open_PR.any(axis=1)
            if done.any():
                fitted |= self._take(np.flatnonzero(done))
                self._keep(np.flatnonzero(~done))
                if advance is not None:
                    advance(int(done.sum()))
        return fitted

    def _one_pass(self) -> None:
        size, steps = self.how.batch_size, self.runs[0].steps
        rows_PT = torch.from_numpy(np.stack([run.next_pass(steps * size) for run in self.runs]))
        rows_PT = rows_PT.to(self.features_ND.device)
        for start in range(0, steps * size, size):
            self._step(rows_PT[:, start : start + size], ragged=start + size == steps * size)

    def _step(self, rows_PB: torch.Tensor, *, ragged: bool) -> None:
        problems, size = rows_PB.shape
        known_PB = rows_PB >= 0
        rows_PB = rows_PB.clamp(min=0)
        batch_PBD = self.features_ND.index_select(0, rows_PB.reshape(-1)).view(problems, size, -1)
        logits_PBO = torch.baddbmm(self.bias_P1O, batch_PBD, self.weight_PDO)
        # gradient of the mean cross-entropy: (softmax - one hot) / rows
        grad_PBRC = logits_PBO.view(problems, size, -1, self.classes).softmax(dim=-1)
        label_PB = self.label_N[rows_PB]
        kinds = grad_PBRC.shape[2]
        place = label_PB[:, :, None, None].expand(-1, -1, kinds, 1)
        grad_PBRC.scatter_add_(3, place, torch.full_like(place, -1, dtype=grad_PBRC.dtype))
        grad_PBO = grad_PBRC.view(problems, size, -1)
        if ragged:
            counts_P11 = known_PB.sum(dim=1)[:, None, None]
            grad_PBO = grad_PBO * (known_PB.unsqueeze(-1) / counts_P11)
        else:
            grad_PBO /= size
        self.weight_PDO.grad = torch.baddbmm(self.weight_PDO * self.decay_P1O, batch_PBD.transpose(1, 2), grad_PBO)
        self.bias_P1O.grad = grad_PBO.sum(dim=1, keepdim=True).addcmul_(self.bias_P1O, self.decay_P1O)
        self.optimizer.step()

    def _look(self) -> None:
        """Score the validation rows and keep the weights of classifiers that improved."""
        accuracy_PR = np.stack([self._dev_accuracy(p) for p in range(len(self.runs))])
        better_PR = self.open_PR & (accuracy_PR > self.best_PR)
        worse_PR = self.open_PR & ~better_PR
        self.best_PR[better_PR] = accuracy_PR[better_PR]
        chosen = torch.from_numpy(better_PR).to(self.weight_PDO.device).repeat_interleave(self.classes, dim=1)
        chosen_P1O = chosen.unsqueeze(1)
        self.best_weight_PDO = torch.where(chosen_P1O, self.weight_PDO, self.best_weight_PDO)
        self.best_bias_P1O = torch.where(chosen_P1O, self.bias_P1O, self.best_bias_P1O)
        self.open_PR[worse_PR & (self.worse_PR >= self.how.tenacity)] = False
        self.worse_PR[worse_PR] += 1

    def _dev_accuracy(self, p: int) -> np.ndarray:
        rows = torch.as_tensor(self.runs[p].dev, device=self.features_ND.device)
        logits_NO = torch.addmm(self.bias_P1O[p], self.features_ND[rows], self.weight_PDO[p])
        predicted_NR = logits_NO.view(len(rows), -1, self.classes).argmax(dim=-1)
        return (predicted_NR == self.label_N[rows, None]).double().mean(dim=0).cpu().numpy()

    def _take(self, places: np.ndarray) -> dict[int, Fitted]:
        found = {}
        for p in places:
            width, kinds = self.weight_PDO.shape[1], self.open_PR.shape[1]
            weight_RCD = self.best_weight_PDO[p].view(width, kinds, self.classes).permute(1, 2, 0).contiguous()
            bias_RC = self.best_bias_P1O[p].view(kinds, self.classes).clone()
            found[self.runs[p].index] = Fitted(weight_RCD, bias_RC, self.best_PR[p].copy())
        return found

    def _keep(self, places: np.ndarray) -> None:
        """Keep only some of the problems, including their optimiser state."""
        rows = torch.from_numpy(places).to(self.weight_PDO.device)
        states = [self.optimizer.state[weight] for weight in (self.weight_PDO, self.bias_P1O)]
        self.runs = [self.runs[p] for p in places]
        for name in ("weight_PDO", "bias_P1O", "best_weight_PDO", "best_bias_P1O", "decay_P1O"):
            setattr(self, name, getattr(self, name)[rows].contiguous())
        for name in ("best_PR", "worse_PR", "open_PR"):
            setattr(self, name, getattr(self, name)[places])
        self.optimizer = self._make_optimizer()
        for weight, state in zip((self.weight_PDO, self.bias_P1O), states, strict=True):
            self.optimizer.state[weight] = {
                name: value[rows].contiguous() if value.dim() else value for name, value in state.items()
            }

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([self.weight_PDO, self.bias_P1O], lr=1e-3, fused=True)
