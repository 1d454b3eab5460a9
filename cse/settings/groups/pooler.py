"""Group ``pooler``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.choices import FirstLayer, PoolerKind, ProjectorKind, ProjectorUse
from cse.settings.groups.group import SettingsGroup


class PoolerSettings(SettingsGroup):
    """How token outputs are pooled into one vector."""

    kind: PoolerKind | None = Field(
        None,
        description="null: the backbone's own pooling (`mean` for MiniLM, `cls` for BERT and RoBERTa, `last` for "
        "decoders); `mask`: the output at the template's mask; `cnn`: IS-BERT's trained convolutions.",
    )
    kind_in_loss: Literal["cls", "mean", "mean_top2", "mean_first_last"] | None = Field(
        None, description="Pooling for the loss, if it differs from the embedding's (ConSERT); null: same as `kind`."
    )
    first_layer: FirstLayer = Field(
        "embeddings", description="`mean_first_last`: which output to use as the first layer."
    )
    mlp: ProjectorUse = Field(
        "none", description="Use the projector after pooling never, in the loss only, or in the embedding too."
    )
    projector: ProjectorKind = Field(
        "tanh",
        description="Projector: `tanh` (Linear + tanh, SimCSE), `batch_norm` (DiffCSE, D2CSE; `mlp: train_only`), or "
        "`mlm_transform` (pretrained layer of the backbone's MLM head, supervised PromptBERT).",
    )
