"""Group ``train``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import NonNegative, Positive, SettingsGroup, Share


class TrainSettings(SettingsGroup):
    """The training loop."""

    parameters: Literal["prompts", "biases", "norms", "lora", "full", "none"] = Field(
        "prompts",
        description="What to train: the prompts (backbone frozen); with them, if there are any, the backbone's "
        "`biases` (BitFit), the scales and biases of its `norms`, low-rank updates of its linear layers (`lora`) or "
        "every weight (`full`); or nothing (pooling, word vectors and post-processing without training).",
    )
    lora_rank: Positive = Field(
        1,
        description="Rank of each update with `parameters: lora`. On MiniLM rank 1 trains 0.18 % of the weights, as "
        "many as 9 prompt vectors per layer.",
    )
    new_layers: Literal["normal", "torch"] = Field(
        "normal",
        description="Initialisation of the BatchNorm projector and of the MLP behind a reparametrised prompt: "
        "`normal`: noise with standard deviation 0.02, no bias (all released code); `torch`: torch's default for "
        "linear layers.",
    )
    optimizer: Literal["adamw", "rmsprop"] = Field(
        "adamw", description="Optimiser: `adamw`, or `rmsprop` for Contrastive Tension."
    )
    beta1: Share = Field(0.9, description="AdamW's decay rate for the first moment.")
    beta2: Share = Field(0.999, description="AdamW's decay rate for the second moment.")
    schedule: Literal["linear", "constant", "staircase"] = Field(
        "linear",
        description="Learning rate after warm-up: `linear` decay to 0, `constant`, or `staircase`: minus a fifth of "
        "the peak every 500 steps, down to a fifth of the peak (Contrastive Tension).",
    )
    learning_rate: float = Field(1e-2, gt=0.0, description="Peak learning rate.")
    batch_size: int = Field(128, ge=2, description="Rows per step; the other rows of the batch serve as negatives.")
    epochs: Positive = Field(1, description="Passes over the training rows.")
    max_steps: Positive | None = Field(
        None,
        description="Stop after this many updates if the passes have more; the schedule ends there too. A short "
        "training keeps more of what the backbone knew. null: no limit.",
    )
    distinct_batches: bool = Field(
        False,
        description="No false negatives: no two rows of a batch have the same label, document or text. Batches get "
        "smaller, and more, where one label has more rows than there would be batches.",
    )
    mix: Literal["batches", "rows"] = Field(
        "batches",
        description="How the sources in `data.more` share the steps: every batch from one source, in random order, or "
        "`rows` of all sources in each batch (sources of one view, without `terms`).",
    )
    max_length: int = Field(
        32,
        ge=3,
        le=100_000,
        description="Maximum tokens per sentence in training, special tokens and template included.",
    )
    roles: list[str] | None = Field(
        None,
        description="Role of each column of text, whose task text (`backbone.texts`) goes before its sentences and, "
        "when choosing a checkpoint, those of dev pairs, for instance `[query, passage]`; null: none. A source in "
        "`data.more` with fewer columns uses the first ones.",
    )
    warmup_share: Share = Field(0.0, description="Share of the steps over which the learning rate warms up from 0.")
    weight_decay: NonNegative = Field(0.0, description="AdamW's decoupled weight decay.")
    average: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Share that a moving average of the weights keeps at each step; the average is what is scored and "
        "saved. Over the first steps the share is smaller. 0: no average.",
    )
    start_share: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Share of the initial weights in those that are scored and saved (WiSE-FT); more keeps more of "
        "what the backbone knew. 0: the trained weights alone.",
    )
    clip_norm: float = Field(1.0, gt=0.0, description="Clip the global gradient norm to this value.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Precision of matrix products in training; `auto`: bf16 if the hardware supports it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: the GPU if there is one, else the CPU.")
    row_groups: Positive | None = Field(
        None,
        le=1000,
        description="Split each batch into this many length-sorted slices, each padded to its own longest row; null: "
        "as many as pay on the device.",
    )
    mini_batch_size: Positive | None = Field(
        None,
        description="Maximum sentences whose activations are held in memory (gradient caching: each slice is encoded "
        "twice, same gradients, a third slower); null: the whole batch, encoded once.",
    )
    workers: Positive = Field(
        1,
        le=1024,
        description="Data-parallel processes that share each batch, one per GPU (or CPU), here or on a Ray cluster.",
    )
    eval_every: Positive = Field(125, description="Steps between dev evaluations.")
    selection: Literal["inference", "training"] = Field(
        "inference",
        description="How to encode dev pairs when choosing a checkpoint: as at `inference`, or as in `training` with "
        "dropout off: `pooler.kind_in_loss`, denoised, no added period (PromptBERT's and ConSERT's released trainers). "
        "The reported dev score is always the one at inference.",
    )
    dev_measure: str | None = Field(
        None,
        description="Measure of the dev task that chooses the checkpoint, for instance `MAP`; null: the task's main "
        "measure (Spearman for scored pairs).",
    )
    early_stop: Positive | None = Field(
        None,
        description="Stop after this many consecutive dev evaluations without a new best score; the score before "
        "training is the first to beat. null: never stop early.",
    )
    save_seconds: NonNegative = Field(
        60.0, description="Seconds between saved states, from which a killed run resumes; 0: save after every step."
    )
    seed: int = Field(42, ge=0, description="Seed for initialisation, data order and dropout.")
