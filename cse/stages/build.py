"""From settings to parts: the last place that sees a settings object on its way down."""

from __future__ import annotations

import torch

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.encoder import SentenceEncoder
from cse.model.prompts import DeepPrompt
from cse.objectives.combine import Objective, build_objective
from cse.settings.tree import ObjectiveSettings, PoolerSettings, PromptSettings, TrainSettings
from cse.training.loop import Plan


def encoder_from(
    backbone: Backbone, prompt: PromptSettings, pooler: PoolerSettings, train: TrainSettings
) -> SentenceEncoder:
    """Build the encoder to train, newly initialised from ``train.seed``.

    Raises:
        CseError: the position table is too short for the prompt and ``train.max_length``.
    """
    torch.manual_seed(train.seed)
    deep = None
    if prompt.kind != "none":
        dropout = backbone.hidden_dropout if prompt.dropout is None else prompt.dropout
        deep = DeepPrompt(prompt.kind, backbone, length=prompt.length, dropout=dropout, init_std=prompt.init_std)
    encoder = SentenceEncoder(
        backbone,
        deep,
        pooler=pooler.kind,
        mlp=pooler.mlp,
        first_layer=pooler.first_layer,
        position_shift=prompt.position_shift,
        frozen=train.parameters == "prompts",
    )
    if train.max_length > encoder.max_length and encoder.shift == 0:
        raise CseError(
            f"train.max_length: {train.max_length} tokens, but {backbone.files.name} has {encoder.max_length} of "
            f"{backbone.max_positions} positions for them; lower it"
        )
    if train.max_length > encoder.max_length:
        raise CseError(
            f"prompt.length: {encoder.shift} leaves {encoder.max_length} of the {backbone.max_positions} positions of "
            f"{backbone.files.name}, fewer than train.max_length {train.max_length}; lower one of the two"
        )
    return encoder


def objective_from(objective: ObjectiveSettings) -> Objective:
    """Compose the loss."""
    return build_objective(
        nt_xent_weight=objective.nt_xent.weight,
        temperature=objective.nt_xent.temperature,
        hard_negative_weight=objective.nt_xent.hard_negative_weight,
        hinge_weight=objective.energy_hinge.weight,
        margin=objective.energy_hinge.margin,
    )


def plan_from(train: TrainSettings, *, bf16: bool) -> Plan:
    """Turn the training settings into plain values for the loop."""
    return Plan(
        learning_rate=train.learning_rate,
        batch_size=train.batch_size,
        epochs=train.epochs,
        warmup_share=train.warmup_share,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm,
        row_groups=train.row_groups,
        eval_every=train.eval_every,
        early_stop=train.early_stop,
        save_every=train.save_every,
        seed=train.seed,
        bf16=bf16,
    )
