"""Group ``pooler``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.choices import FirstLayer, PoolerKind, ProjectorKind, ProjectorUse
from cse.settings.groups.group import Group


class PoolerSettings(Group):
    """How token outputs become one vector."""

    kind: PoolerKind | None = Field(
        None,
        description="null: as the backbone was made for (`mean` for MiniLM, `cls` for BERT and RoBERTa); `mask` reads "
        "the template's mask; `cnn` is IS-BERT's trained convolutions.",
    )
    kind_in_loss: Literal["cls", "mean", "mean_top2", "mean_first_last"] | None = Field(
        None, description="What the loss reads where that differs from the embedding (ConSERT); null: the same."
    )
    first_layer: FirstLayer = Field(
        "embeddings", description="`mean_first_last`: which output counts as the first layer."
    )
    mlp: ProjectorUse = Field(
        "none", description="Projector after pooling: never, in the loss only, or in the embedding too."
    )
    projector: ProjectorKind = Field(
        "tanh",
        description="The projector: `tanh` (Linear + tanh, SimCSE), `batch_norm` (DiffCSE, D2CSE; train_only), or "
        "`mlm_transform`, the pretrained layer under the backbone's MLM head (supervised PromptBERT).",
    )
