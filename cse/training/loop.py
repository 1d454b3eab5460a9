"""The training loop for every system and launcher: step, log, evaluate, save, in that order."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cse.errors import CseError, Interrupted
from cse.evaluation.measures import NotFinite, UndefinedScore
from cse.losses.group import ALONE, Group
from cse.losses.shared import Batch
from cse.model.passes import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.process import handling
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.batch import Batcher, Staged, TokenTable
from cse.training.batches import Mixture
from cse.training.capture import Captured, Terms, Update, why_not
from cse.training.losses import Losses
from cse.training.observers import Observer, StepRecord
from cse.training.state import InitialShare, RunFolder, RunState, copy_into

_log = logging.getLogger("cse")
REPORT_EVERY = 5  # steps; reading a loss synchronises with the device
CLIP_NORM = 1.0  # largest norm of a gradient
STAIR = 500  # steps per decay interval of the staircase schedule (Contrastive Tension)
_NO_START = "prompt: the embeddings are not finite before any update; take another backbone"


PLAIN = AugmentSettings()
CPU = torch.device("cpu")


def train(
    encoder: SentenceEncoder,
    losses: Losses,
    tables: Sequence[TokenTable],
    settings: TrainSettings,
    *,
    augment: AugmentSettings = PLAIN,
    bf16: bool = False,
    dev: Callable[[], float] | None,
    choose: bool = True,
    folder: RunFolder,
    observer: Observer,
    device: torch.device = CPU,
    group: Group = ALONE,
) -> RunState:
    """Train to the end and leave the best weights in the encoder.

    The initial weights are scored before the first update and count as a candidate, since training may make them worse.

    A killed run resumes from the last state saved in its folder and ends with the same weights: rows and dropout follow
    from (seed, step), so only weights and optimiser need saving. On a CPU the weights match bit for bit; on a GPU,
    where some kernels add in no fixed order, they match to rounding.

    Args:
        encoder: its ``trainable()`` weights are updated, and those of ``losses``; all others stay bit for bit.
        tables: the rows of each source, the main one's first.
        dev: scores the encoder (Spearman * 100); None if there are no dev pairs.
        choose: whether to keep the weights with the best dev score. Otherwise, or without ``dev``, keeps the last.
        folder: where the resumable state is saved. With several workers, the first one's counts and its clock decides
            when to save; the others call it too, with nothing.

    Returns:
        The final state; the encoder holds its ``best_weights``, or its last weights if nothing was selected.

    Raises:
        Interrupted: SIGTERM or SIGINT arrived; saves the state first.
    """
    encoder.to(device).train()
    losses.to(device).train()
    weights = encoder.trainable() | losses.trainable()
    optimizer = _optimizer(weights, losses.rates(), settings)
    orders, epochs = [table.rows for table in tables], settings.epochs
    batches = Mixture(orders, batch_size=settings.batch_size, epochs=epochs, seed=settings.seed)
    steps = min(batches.steps, settings.max_steps or batches.steps)
    mixed = InitialShare(encoder.trainable(), settings.start_share)
    state = _start(folder, weights, mixed, losses, optimizer, group)
    observer.start(state.step, steps)

    reason = why_not(encoder, losses, settings, augment, device, group)
    batcher = Batcher(
        encoder=encoder, settings=settings, augment=augment, device=device, bf16=bf16, group=group, alike=not reason
    )

    def evaluate() -> None:
        if dev is not None:
            with mixed.in_place():
                _evaluate(encoder, _score(dev, state, settings, group), state, observer, choose=choose)

    def update(staged: Staged, tensors: Sequence[torch.Tensor]) -> Terms:
        batch = batcher.encode(staged, tensors)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            terms = losses(batch)
        optimizer.zero_grad()
        terms["loss"].backward()
        group.average_gradients(weights)
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), CLIP_NORM)
        _check_first(batch, terms, norm, group)
        optimizer.step()
        losses.after_update(batch)
        return terms

    run = _runner(update, optimizer, device, reason)

    received: list[int] = []
    with handling(received.append, signal.SIGTERM, signal.SIGINT):
        try:
            if state.step == 0:
                evaluate()
            clock, sentences, tokens, stop = time.monotonic(), 0, 0, False
            saved = clock
            while not _is_over(state, steps, settings.early_stop):
                step = state.step
                source, epoch, rows = batches.at(step)
                torch.manual_seed(_step_seed(settings.seed, step, group.rank))
                for weighted in optimizer.param_groups:
                    weighted["lr"] = weighted["peak"] * rate_factor(settings, step, steps)

                terms = run(staged := batcher.stage(tables[source], rows, step=step, epoch=epoch, source=source))

                state.step = step + 1
                sentences += len(rows) * len(tables[source].columns)
                tokens += staged.real_tokens
                last = state.step == steps
                reports = state.step % REPORT_EVERY == 0 or last
                due = group.rank == 0 and time.monotonic() - saved >= settings.save_seconds
                if reports:
                    values = losses.record(group.average(terms))
                    stop, due = group.any(bool(received), due)  # all workers do both at the same step
                    _check_loss(values["loss"], state.step, settings.learning_rate)
                    seconds = max(time.monotonic() - clock, 1e-9)
                    learning_rate = optimizer.param_groups[0]["lr"]
                    speed = sentences / seconds, tokens / seconds
                    observer.step(StepRecord(state.step, steps, values, learning_rate, *speed, state.best_score))
                    clock, sentences, tokens = time.monotonic(), 0, 0
                if dev is not None and (state.step % settings.eval_every == 0 or last):
                    _check_loss(group.average({"loss": terms["loss"]})["loss"], state.step, settings.learning_rate)
                    evaluate()
                    clock, sentences, tokens = time.monotonic(), 0, 0
                stop = stop or (group.size == 1 and bool(received))
                last = _is_over(state, steps, settings.early_stop)
                if last or stop or (due and (reports or group.size == 1)):
                    if group.rank == 0:
                        state.weights, state.memory = _on_host(weights), _on_host(losses.memory())
                        state.optimizer = _on_host(optimizer.state_dict())
                        state.best_weights = state.best_weights or (_on_host(mixed.result()) if last else {})
                    folder.save(state if group.rank == 0 else None, behind=not (last or stop))
                    saved = time.monotonic()
                if stop and not last:
                    raise Interrupted((received or [signal.SIGTERM])[0], f"after step {state.step} of {steps}")
        finally:
            observer.close()
            folder.wait()
    take_best(encoder, state)
    return state


def _runner(
    update: Update, optimizer: torch.optim.Optimizer, device: torch.device, reason: str
) -> Callable[[Staged], Terms]:
    """Return what runs a step: a captured graph, unless there is a reason why not."""
    if not reason:
        return Captured(update, optimizer, device)
    if device.type == "cuda":
        _log.info("train: kernels are launched one by one, not as a captured graph: %s", reason)
    return lambda staged: update(staged, on_device(staged.arrays, device))


def rate_factor(settings: TrainSettings, step: int, steps: int) -> float:
    """Return the fraction of the peak learning rate at update ``step`` (from 0): warm-up, then the schedule."""
    warmup = int(settings.warmup_share * steps)
    if step < warmup:
        return (step + 1) / warmup
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "staircase":
        return max(1.0 - 0.2 * ((step - warmup) // STAIR), 0.2)
    return (steps - step) / max(steps - warmup, 1)


def take_best(encoder: SentenceEncoder, state: RunState) -> None:
    """Load a state's best weights into the encoder, or, without any, the last ones."""
    if kept := state.best_weights or state.weights:  # of several workers the first alone has the last
        copy_into(encoder.trainable(), kept)
    encoder.eval()


def _start(
    folder: RunFolder,
    weights: Mapping[str, torch.Tensor],
    mixed: InitialShare,
    losses: Losses,
    optimizer: torch.optim.Optimizer,
    group: Group,
) -> RunState:
    """Return the state to resume from, taken from the first worker, and load its weights."""
    state = group.from_first(lambda: folder.load() or RunState())
    if state.step:
        copy_into(weights, state.weights)
        copy_into(losses.memory(), state.memory)
        optimizer.load_state_dict(state.optimizer)
    elif group.size > 1:
        copy_into(weights, group.from_first(lambda: _on_host(weights)))
        mixed.start()
    return state


def _is_over(state: RunState, steps: int, early_stop: int | None) -> bool:
    """Return whether all updates are done or early stopping applies; also true for a resumed run that had ended."""
    return state.step >= steps or (early_stop is not None and state.stale >= early_stop)


def _check_first(batch: Batch, terms: Mapping[str, torch.Tensor], norm: torch.Tensor, group: Group) -> None:
    """Reject a non-finite first step; no update has happened yet, so the learning rate is not the cause."""
    if batch.step > 0:
        return
    found = group.average({"embeddings": batch.projected_XD.abs().amax(), **terms, "gradient": norm})
    if not math.isfinite(found.pop("embeddings")):
        raise CseError(_NO_START)
    wrong = next((name for name, value in found.items() if not math.isfinite(value)), None)
    if wrong is None:
        return
    term = "objective" if wrong in ("loss", "gradient") else f"objective.{wrong}"
    what = "gradient" if wrong == "gradient" else "loss"
    raise CseError(
        f"{term}: the {what} is {found[wrong]} at step 1, before any update, though the embeddings are finite; raise "
        "the temperature (objective.nt_xent.temperature) or lower the weight"
    )


def _check_loss(loss: float, step: int, rate: float) -> None:
    if not math.isfinite(loss):
        raise CseError(f"train.learning_rate: the loss is {loss} at step {step}; lower it (now {rate:g}) and run again")


def _score(dev: Callable[[], float], state: RunState, settings: TrainSettings, group: Group) -> float:
    """Return the dev score; blame training if the pairs could be scored before the first update but not now."""
    try:
        return group.from_first(dev)
    except (UndefinedScore, NotFinite) as error:
        if state.step > 0:
            raise CseError(
                f"train.learning_rate: at step {state.step} the embeddings of the dev pairs are identical or not "
                f"finite, unlike before training; lower it (now {settings.learning_rate:g}) and run again"
            ) from error
        if isinstance(error, NotFinite):
            raise CseError(_NO_START) from error
        raise


def _evaluate(encoder: SentenceEncoder, score: float, state: RunState, observer: Observer, *, choose: bool) -> None:
    best = choose and (state.best_score is None or score > state.best_score)
    state.evaluations.append((state.step, score))
    if choose:
        state.stale = 0 if best else state.stale + 1
    if best:
        state.best_score, state.best_step = score, state.step
        state.best_weights = _on_host(encoder.trainable())
    observer.evaluated(state.step, score, best)


def _optimizer(
    weights: Mapping[str, torch.nn.Parameter], rates: Mapping[str, float], settings: TrainSettings
) -> torch.optim.Optimizer:
    """Make the optimiser, with one parameter group per peak learning rate."""
    groups: dict[float, list[torch.nn.Parameter]] = {}
    for name, weight in weights.items():
        groups.setdefault(rates.get(name, settings.learning_rate), []).append(weight)
    members = [{"params": members, "lr": peak, "peak": peak} for peak, members in groups.items()]
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(members, weight_decay=settings.weight_decay)
    fused = all(weight.is_cuda for weight in weights.values())  # one launch for all of them
    betas, decay = (0.9, settings.beta2), settings.weight_decay
    return torch.optim.AdamW(members, betas=betas, eps=1e-8, weight_decay=decay, fused=fused)


def _on_host(value: Any) -> Any:
    """Return copies on the CPU of the tensors in a dict or list, at any depth; later updates leave them alone."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    return [_on_host(each) for each in value] if isinstance(value, list) else value


def _step_seed(seed: int, step: int, worker: int) -> int:
    """Return the seed for a step's dropout; a single worker draws the same as the first of several."""
    parts = [seed, step, worker] if worker else [seed, step]
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
