"""Group ``train``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import Group, NonNegative, Positive, Share


class TrainSettings(Group):
    """The training loop."""

    parameters: Literal["prompts", "full", "none"] = Field(
        "prompts",
        description="What is trained: the prompts (backbone frozen), every weight, or nothing (read-outs, word vectors "
        "and post-processing without training).",
    )
    new_layers: Literal["normal", "torch"] = Field(
        "normal",
        description="Start of the BatchNorm projector and of the MLP behind a reparametrised prompt: normal noise of "
        "0.02 and no bias, as in every released code, or as torch starts a linear layer.",
    )
    optimizer: Literal["adamw", "rmsprop"] = Field("adamw", description="Optimiser; `rmsprop` for Contrastive Tension.")
    beta1: Share = Field(0.9, description="AdamW's decay of the mean.")
    beta2: Share = Field(0.999, description="AdamW's decay of the variance.")
    schedule: Literal["linear", "constant", "staircase"] = Field(
        "linear",
        description="Learning rate after warm-up: in a line to 0, constant, or less by a fifth of the peak every 500 "
        "steps, down to a fifth (Contrastive Tension).",
    )
    learning_rate: float = Field(1e-2, gt=0.0, description="Peak learning rate.")
    batch_size: int = Field(128, ge=2, description="Rows per step; each row's negatives are the other rows.")
    epochs: Positive = Field(1, description="Passes over the training rows.")
    max_length: int = Field(
        32, ge=3, le=100_000, description="Tokens per sentence in training, special tokens and template included."
    )
    warmup_share: Share = Field(0.0, description="Share of the steps in which the learning rate rises from 0.")
    weight_decay: NonNegative = Field(0.0, description="AdamW's decoupled weight decay.")
    clip_norm: float = Field(1.0, gt=0.0, description="Largest global norm of the gradient.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Of the matrix products in training; `auto`: bf16 where the hardware has it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU where there is one.")
    row_groups: Positive = Field(
        4, le=1000, description="Length-sorted slices in which a batch is encoded, each padded to its own longest row."
    )
    mini_batch_size: Positive | None = Field(
        None,
        description="Most sentences whose activations are in memory at once: each slice of a batch is encoded twice "
        "(gradient caching, same gradients, a third slower); null: the whole batch, encoded once.",
    )
    workers: Positive = Field(
        1,
        le=1024,
        description="Processes that share each batch, one per GPU (or CPU), on this machine or a Ray cluster.",
    )
    eval_every: Positive = Field(125, description="Steps between evaluations on the dev pairs.")
    selection: Literal["inference", "training"] = Field(
        "inference",
        description="How dev pairs are encoded to choose a checkpoint: as at inference, or as the loss reads them, "
        "dropout off: `pooler.kind_in_loss`, denoised, no added period (PromptBERT's and ConSERT's released trainers). "
        "The score that is reported of the kept one is at inference.",
    )
    early_stop: Positive | None = Field(
        None,
        description="Evaluations on the dev pairs without a new best score, the start's included, before stopping.",
    )
    save_seconds: NonNegative = Field(
        60.0, description="Seconds between saved states that a killed run resumes from; 0: after every step."
    )
    seed: int = Field(42, ge=0, description="Seed of initialisation, order and dropout.")
