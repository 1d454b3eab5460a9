"""Groups ``train`` and ``augment``: the training loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.group import NonNegative, Positive, SettingsGroup, Share


class TrainSettings(SettingsGroup):
    """The training loop."""

    parameters: Literal["prompts", "biases", "norms", "lora", "full", "none"] = "prompts"
    """What to train: `prompts` (backbone frozen); with them, if there are any, the backbone's `biases` (BitFit),
    `norms`, low-rank updates (`lora`) or every weight (`full`); or nothing."""
    lora_rank: Positive = 1
    """Rank of each update with `parameters: lora`; rank 1 trains 0.18 % of MiniLM."""
    new_layers: Literal["normal", "torch"] = "normal"
    """Initialisation of the BatchNorm projector and of a reparametrised prompt's MLP: `normal`: deviation 0.02, no bias
    (released code); `torch`: torch's default."""
    optimizer: Literal["adamw", "rmsprop"] = "adamw"
    """Optimiser: `adamw`, or `rmsprop` for Contrastive Tension."""
    beta2: Share = 0.999
    """AdamW's decay rate for the second moment."""
    schedule: Literal["linear", "constant", "staircase"] = "linear"
    """Learning rate after warm-up: `linear` to 0, `constant`, or `staircase`: a fifth of the peak less every 500 steps,
    down to a fifth (Contrastive Tension)."""
    learning_rate: float = Field(1e-2, gt=0.0)
    """Peak learning rate."""
    batch_size: int = Field(128, ge=2)
    """Rows per step; the other rows of the batch serve as negatives."""
    epochs: Positive = 1
    """Passes over the training rows."""
    max_steps: Positive | None = None
    """Stop after this many updates; the schedule ends there too. null: no limit."""
    distinct_batches: bool = False
    """No two rows of a batch have the same label, document or text; batches get smaller where a label has many rows."""
    max_length: int = Field(32, ge=3, le=100_000)
    """Maximum tokens per sentence in training, special tokens and template included."""
    roles: list[str] | None = None
    """Role of each column, whose task text (`backbone.texts`) goes before its sentences, and before those of dev pairs
    when choosing a checkpoint, such as `[query, passage]`; null: none."""
    warmup_share: Share = 0.0
    """Share of the steps over which the learning rate warms up from 0."""
    weight_decay: NonNegative = 0.0
    """AdamW's decoupled weight decay."""
    start_share: Share = 0.0
    """Share of the initial weights in those that are scored and saved (WiSE-FT); 0: the trained weights alone."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of matrix products in training; `auto`: bf16 if the hardware supports it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the GPU if there is one, else the CPU."""
    row_groups: Positive | None = Field(None, le=1000)
    """Length-sorted slices of each batch, each padded to its own longest row; null: as many as pay on the device."""
    mini_batch_size: Positive | None = None
    """Most sentences whose activations are in memory (gradient caching: same gradients, a third slower); null: the
    whole batch."""
    workers: Positive = Field(1, le=1024)
    """Data-parallel processes that share each batch, one per GPU (or CPU), here or on a Ray cluster."""
    eval_every: Positive = 125
    """Steps between dev evaluations."""
    selection: Literal["inference", "training"] = "inference"
    """How dev pairs are encoded when choosing a checkpoint: as at `inference`, or as in `training` without dropout
    (PromptBERT's and ConSERT's released trainers). The reported dev score is the one at inference."""
    dev_measure: str | None = None
    """Measure of the dev task that chooses the checkpoint, such as `MAP`; null: its main measure."""
    early_stop: Positive | None = None
    """Stop after this many dev evaluations in a row without a new best score; null: never."""
    save_seconds: NonNegative = 60.0
    """Seconds between saved states, from which a killed run resumes; 0: save after every step."""
    seed: int = Field(42, ge=0)
    """Seed for initialisation, data order and dropout."""


class AugmentSettings(SettingsGroup):
    """How the two copies of a sentence are made to differ, besides dropout."""

    repeat_words: Share = 0.0
    """Maximum share of word pieces to repeat in the second copy (ESimCSE); 0: none."""
    repeat_rule: Literal["paper", "released"] = "paper"
    """Upper bound on the number of repeated pieces: `paper`: that share of the pieces, but at least 2; `released`:
    fewer than that share and fewer than 10, counting special tokens in the length (released code)."""
    mask_span: int = Field(0, ge=0, le=100_000)
    """Length in characters of the random span to mask in the second copy (Mirror-BERT); 0: none."""
    shuffle_tokens: Literal["none", "paper", "released"] = "none"
    """Shuffle the token positions of the first copy (ConSERT): `paper`: but for the first and the last token;
    `released`: all, as its released code does."""
    cut_features: Share = 0.0
    """Share of embedding features to zero in the second copy (ConSERT); 0: none."""
    dropout: bool = True
    """Use the backbone's dropout in training; ConSERT turns it off."""
    attention_dropout: Share | None = None
    """Dropout of the backbone's attention in training; null: its own. Decoders have none, so that two copies of a
    sentence would be equal (LLM2Vec takes 0.3)."""
