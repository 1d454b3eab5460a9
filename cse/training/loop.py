"""The training loop: step, log, evaluate, save, in that order, for every system and every launcher."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from cse.errors import CseError, Interrupted
from cse.model.encoder import SentenceEncoder
from cse.objectives.combine import Objective
from cse.training.observers import Observer, StepRecord
from cse.training.state import RunFolder, RunState, stop_signals
from cse.training.tokens import TokenTable, batch_rows, pad_in_groups

REPORT_EVERY = 5  # steps; reading a loss waits for the device


@dataclass(frozen=True)
class Plan:
    """How a run goes; plain values, units as in the settings of the same names."""

    learning_rate: float
    batch_size: int
    epochs: int = 1
    warmup_share: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    row_groups: int = 1
    eval_every: int = 125
    early_stop: int | None = None
    save_every: int = 25
    seed: int = 42
    bf16: bool = False

    def steps_per_epoch(self, rows: int) -> int:
        """Return updates per epoch; the last batch is kept even if it is short."""
        return math.ceil(rows / self.batch_size)

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the peak learning rate at update ``step`` (from 0): warm-up, then linear to 0."""
        warmup = int(self.warmup_share * steps)
        if step < warmup:
            return (step + 1) / warmup
        return (steps - step) / max(steps - warmup, 1)


def train(
    encoder: SentenceEncoder,
    objective: Objective,
    table: TokenTable,
    plan: Plan,
    *,
    dev: Callable[[], float] | None,
    folder: RunFolder,
    observer: Observer,
    device: torch.device | None = None,
) -> RunState:
    """Train until the plan is done and leave the best weights in the encoder.

    A run that was killed goes on from its folder's last saved state and ends with the same weights: rows follow from
    (seed, epoch) and dropout from (seed, step), so nothing but weights and optimiser has to be remembered.

    Args:
        encoder: its ``trainable()`` weights are updated, all others stay bit for bit.
        objective: loss over the embeddings of all views.
        table: tokenised rows.
        plan: hyperparameters.
        dev: scores the encoder (Spearman * 100) for the choice of the best weights; None keeps the last ones.
        folder: scratch folder that holds the resumable state.
        observer: told of progress.
        device: where to train; the CPU by default.

    Returns:
        The final state; its ``best_weights`` (or last weights, without ``dev``) are in the encoder.

    Raises:
        CseError: the loss or a weight stopped being a number.
        Interrupted: SIGTERM or SIGINT arrived; the state is saved first.
    """
    device = device or torch.device("cpu")
    encoder.to(device).train()
    weights = encoder.trainable()
    optimizer = torch.optim.AdamW(
        weights.values(), lr=plan.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=plan.weight_decay
    )
    per_epoch = plan.steps_per_epoch(len(table))
    steps = per_epoch * plan.epochs
    state = folder.load() or RunState()
    if state.step:
        _restore(weights, optimizer, state)
    observer.start(state.step, steps)

    clock, sentences, tokens = time.monotonic(), 0, 0
    with stop_signals((signal.SIGTERM, signal.SIGINT)) as received:
        try:
            for step in range(state.step, steps):
                epoch, place = divmod(step, per_epoch)
                rows = batch_rows(len(table), batch_size=plan.batch_size, seed=plan.seed, epoch=epoch, step=place)
                torch.manual_seed(_step_seed(plan.seed, step))
                for group in optimizer.param_groups:
                    group["lr"] = plan.learning_rate * plan.factor(step, steps)

                views_VBD, real_tokens = embed_views(encoder, table, rows, plan, device)
                terms = objective(views_VBD)
                optimizer.zero_grad()
                terms["loss"].backward()
                torch.nn.utils.clip_grad_norm_(weights.values(), plan.clip_norm)
                optimizer.step()

                state.step = step + 1
                sentences += len(rows) * len(table.columns)
                tokens += real_tokens
                last = state.step == steps
                if state.step % REPORT_EVERY == 0 or last:
                    values = {name: value.item() for name, value in terms.items()}
                    if not math.isfinite(values["loss"]):
                        raise CseError(
                            f"train.learning_rate: the loss is {values['loss']} at step {state.step}; lower it "
                            f"(now {plan.learning_rate:g}) and run again"
                        )
                    seconds = max(time.monotonic() - clock, 1e-9)
                    learning_rate = optimizer.param_groups[0]["lr"]
                    speed = sentences / seconds, tokens / seconds
                    observer.step(StepRecord(state.step, steps, values, learning_rate, *speed, state.best_score))
                    clock, sentences, tokens = time.monotonic(), 0, 0
                if dev is not None and (state.step % plan.eval_every == 0 or last):
                    _evaluate(encoder, dev, state, observer)
                    clock, sentences, tokens = time.monotonic(), 0, 0
                if state.step % plan.save_every == 0 or last or received:
                    state.weights = _copies(weights)
                    state.optimizer = optimizer.state_dict()
                    folder.save(state)
                if received and not last:
                    raise Interrupted(received[0], f"after step {state.step} of {steps}")
                if plan.early_stop is not None and state.stale >= plan.early_stop:
                    break
        finally:
            observer.close()
    if state.best_score is not None:
        _copy_into(weights, state.best_weights)
    encoder.eval()
    return state


def embed_views(
    encoder: SentenceEncoder, table: TokenTable, rows: np.ndarray, plan: Plan, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], int]:
    """Encode all views of a batch together: every copy of a sentence gets its own dropout.

    Returns:
        one ``(B, D)`` tensor per view, and the number of real tokens that went in.
    """
    parts, places, tokens = [], [], 0
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=plan.bf16):
        for padded in pad_in_groups(table, rows, plan.row_groups):
            ids_BL = torch.from_numpy(padded.ids_BL).to(device, non_blocking=True)
            mask_BL = torch.from_numpy(padded.mask_BL).to(device, non_blocking=True)
            parts.append(encoder(ids_BL, mask_BL).float())
            places.append(padded.places)
            tokens += int(padded.mask_BL.sum())
    back = torch.from_numpy(np.argsort(np.concatenate(places))).to(device)
    return torch.cat(parts)[back].split(len(rows)), tokens


def _evaluate(encoder: SentenceEncoder, dev: Callable[[], float], state: RunState, observer: Observer) -> None:
    score = dev()
    best = state.best_score is None or score > state.best_score
    state.evaluations.append((state.step, score))
    state.stale = 0 if best else state.stale + 1
    if best:
        state.best_score, state.best_step = score, state.step
        state.best_weights = _copies(encoder.trainable())
    observer.evaluated(state.step, score, best)


def _restore(weights: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, state: RunState) -> None:
    _copy_into(weights, state.weights)
    optimizer.load_state_dict(state.optimizer)


def _copies(weights: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


def _copy_into(weights: dict[str, torch.nn.Parameter], values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(values[name])


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
