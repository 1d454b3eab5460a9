"""The training loop: step, log, evaluate, save, in that order, for every system and every launcher."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from cse.errors import CseError, Interrupted
from cse.model.encoder import SentenceEncoder
from cse.training.batch import NO_AUGMENTATION, Augmentation, Cut, encode_batch
from cse.training.group import ALONE, Group
from cse.training.losses import Losses
from cse.training.observers import Observer, StepRecord
from cse.training.state import RunFolder, RunState, stop_signals
from cse.training.tokens import TokenTable, batch_rows

REPORT_EVERY = 5  # steps; reading a loss waits for the device
STAIR = 500  # steps between the stairs of the staircase schedule (Contrastive Tension)


@dataclass(frozen=True)
class Plan:
    """How a run goes; plain values, units as in the settings of the same names."""

    learning_rate: float
    batch_size: int
    epochs: int = 1
    warmup_share: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "linear"
    augmentation: Augmentation = NO_AUGMENTATION
    cut: Cut = Cut()  # noqa: RUF009 - frozen
    eval_every: int = 125
    early_stop: int | None = None
    save_every: int = 25
    seed: int = 42
    bf16: bool = False

    def steps_per_epoch(self, rows: int) -> int:
        """Return updates per epoch; the last batch is kept even if it is short."""
        return math.ceil(rows / self.batch_size)

    def factor(self, step: int, steps: int) -> float:
        """Return the share of the peak learning rate at update ``step`` (from 0): warm-up, then the schedule."""
        warmup = int(self.warmup_share * steps)
        if step < warmup:
            return (step + 1) / warmup
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "staircase":
            return max(1.0 - 0.2 * ((step - warmup) // STAIR), 0.2)
        return (steps - step) / max(steps - warmup, 1)


def train(
    encoder: SentenceEncoder,
    losses: Losses,
    table: TokenTable,
    plan: Plan,
    *,
    dev: Callable[[], float] | None,
    folder: RunFolder,
    observer: Observer,
    device: torch.device | None = None,
    group: Group = ALONE,
) -> RunState:
    """Train until the plan is done and leave the best weights in the encoder.

    A run that was killed goes on from its folder's last saved state and ends with the same weights: rows follow from
    (seed, epoch) and dropout from (seed, step), so nothing but weights and optimiser has to be remembered.

    Args:
        encoder: its ``trainable()`` weights are updated, all others stay bit for bit.
        losses: what a step minimises; its own ``trainable()`` weights are updated too.
        table: tokenised rows.
        plan: hyperparameters.
        dev: scores the encoder (Spearman * 100) for the choice of the best weights; None keeps the last ones.
        folder: scratch folder that holds the resumable state; of several workers the first one's counts.
        observer: told of progress.
        device: where to train; the CPU by default.
        group: the workers that share each batch; all of them call this with the same arguments.

    Returns:
        The final state; its ``best_weights`` (or last weights, without ``dev``) are in the encoder.

    Raises:
        CseError: the loss or a weight stopped being a number.
        Interrupted: SIGTERM or SIGINT arrived; the state is saved first.
    """
    device = device or torch.device("cpu")
    encoder.to(device).train()
    losses.to(device).train()
    weights = encoder.trainable() | losses.trainable()
    optimizer = _optimizer(weights, losses.rates(), plan)
    per_epoch = plan.steps_per_epoch(len(table))
    steps = per_epoch * plan.epochs
    state = _start(folder, weights, losses, optimizer, group)
    observer.start(state.step, steps)

    clock, sentences, tokens, stop = time.monotonic(), 0, 0, False
    with stop_signals((signal.SIGTERM, signal.SIGINT)) as received:
        try:
            for step in range(state.step, steps):
                epoch, place = divmod(step, per_epoch)
                rows = batch_rows(len(table), batch_size=plan.batch_size, seed=plan.seed, epoch=epoch, step=place)
                torch.manual_seed(_step_seed(plan.seed, step, group.rank))
                for weighted in optimizer.param_groups:
                    weighted["lr"] = weighted["peak"] * plan.factor(step, steps)

                batch = encode_batch(
                    encoder,
                    table,
                    rows,
                    cut=plan.cut,
                    augmentation=plan.augmentation,
                    rng=np.random.default_rng([plan.seed, step]),
                    step=step,
                    epoch=epoch,
                    device=device,
                    bf16=plan.bf16,
                    group=group,
                )
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=plan.bf16):
                    terms = losses(batch)
                optimizer.zero_grad()
                terms["loss"].backward()
                group.average_gradients(weights)
                torch.nn.utils.clip_grad_norm_(weights.values(), plan.clip_norm)
                optimizer.step()
                losses.after_update(batch)

                state.step = step + 1
                sentences += len(rows) * len(table.columns)
                tokens += batch.real_tokens
                del batch
                last = state.step == steps
                if state.step % REPORT_EVERY == 0 or last:
                    values = group.average(terms)
                    stop = group.any(bool(received))  # several workers leave at the same step
                    _check_loss(values["loss"], state.step, plan)
                    seconds = max(time.monotonic() - clock, 1e-9)
                    learning_rate = optimizer.param_groups[0]["lr"]
                    speed = sentences / seconds, tokens / seconds
                    observer.step(StepRecord(state.step, steps, values, learning_rate, *speed, state.best_score))
                    clock, sentences, tokens = time.monotonic(), 0, 0
                if dev is not None and (state.step % plan.eval_every == 0 or last):
                    _check_loss(group.average({"loss": terms["loss"]})["loss"], state.step, plan)
                    _evaluate(encoder, group.agree(dev() if group.rank == 0 else None), state, observer)
                    clock, sentences, tokens = time.monotonic(), 0, 0
                stop = stop or (group.size == 1 and bool(received))
                last = last or (plan.early_stop is not None and state.stale >= plan.early_stop)
                if state.step % plan.save_every == 0 or last or stop:
                    state.weights, state.memory = _copies(weights), _copies(losses.memory())
                    state.optimizer = optimizer.state_dict()
                    if group.rank == 0:
                        folder.save(state)
                if stop and not last:
                    raise Interrupted((received or [signal.SIGTERM])[0], f"after step {state.step} of {steps}")
                if last:
                    break
        finally:
            observer.close()
    take_best(encoder, state)
    return state


def take_best(encoder: SentenceEncoder, state: RunState) -> None:
    """Leave a state's best weights in the encoder, or its last ones where there was nothing to choose by."""
    _copy_into(encoder.trainable(), state.weights if state.best_score is None else state.best_weights)
    encoder.eval()


def _start(
    folder: RunFolder,
    weights: Mapping[str, torch.Tensor],
    losses: Losses,
    optimizer: torch.optim.Optimizer,
    group: Group,
) -> RunState:
    """Return the state to go on from, the first worker's for all, with its weights in place."""
    state: RunState = group.agree((folder.load() or RunState()) if group.rank == 0 else None)
    if state.step:
        _copy_into(weights, state.weights)
        _copy_into(losses.memory(), state.memory)
        optimizer.load_state_dict(state.optimizer)
    elif group.size > 1:
        _copy_into(weights, group.agree(_copies(weights)))
    return state


def _check_loss(loss: float, step: int, plan: Plan) -> None:
    if not math.isfinite(loss):
        raise CseError(
            f"train.learning_rate: the loss is {loss} at step {step}; lower it (now {plan.learning_rate:g}) and run "
            "again"
        )


def _evaluate(encoder: SentenceEncoder, score: float, state: RunState, observer: Observer) -> None:
    best = state.best_score is None or score > state.best_score
    state.evaluations.append((state.step, score))
    state.stale = 0 if best else state.stale + 1
    if best:
        state.best_score, state.best_step = score, state.step
        state.best_weights = _copies(encoder.trainable())
    observer.evaluated(state.step, score, best)


def _optimizer(weights: dict[str, torch.nn.Parameter], rates: dict[str, float], plan: Plan) -> torch.optim.Optimizer:
    """Make the optimiser: one group of weights for each peak learning rate."""
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for name, weight in weights.items():
        groups.setdefault(rates.get(name, plan.learning_rate), []).append(weight)
    settings = [{"params": members, "lr": peak, "peak": peak} for peak, members in groups.items()]
    if plan.optimizer == "rmsprop":
        return torch.optim.RMSprop(settings, weight_decay=plan.weight_decay)
    return torch.optim.AdamW(settings, betas=plan.betas, eps=1e-8, weight_decay=plan.weight_decay)


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in weights.items()}


def _copy_into(weights: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(values[name])


def _step_seed(seed: int, step: int, worker: int) -> int:
    """Return the seed of a step's dropout; a worker alone draws as the first of several does."""
    parts = [seed, step, worker] if worker else [seed, step]
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
