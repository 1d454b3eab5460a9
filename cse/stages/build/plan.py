"""Build the training plan from groups ``train`` and ``augment``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cse.losses.masked_lm import Vocabulary
from cse.model.backbone import Backbone
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.augment import mask_span
from cse.training.batch import Augmentation
from cse.training.loop import Plan
from cse.training.slices import Cut


def plan_from(train: TrainSettings, augment: AugmentSettings, backbone: Backbone, *, bf16: bool) -> Plan:
    """Convert the training settings to plain values for the loop."""
    special = Vocabulary.of(backbone).special if augment.repeat_words > 0 else ()
    return Plan(
        learning_rate=train.learning_rate,
        batch_size=train.batch_size,
        epochs=train.epochs,
        max_steps=train.max_steps,
        warmup_share=train.warmup_share,
        weight_decay=train.weight_decay,
        start_share=train.start_share,
        optimizer=train.optimizer,
        beta2=train.beta2,
        schedule=train.schedule,
        augmentation=Augmentation(
            repeat_share=augment.repeat_words,
            repeat_rule=augment.repeat_rule,
            special=special,
            shuffle=augment.shuffle_tokens,
            shuffle_special=augment.shuffle_special,
            cut_share=augment.cut_features,
        ),
        cut=Cut(train.row_groups, train.mini_batch_size),
        eval_every=train.eval_every,
        early_stop=train.early_stop,
        save_seconds=train.save_seconds,
        seed=train.seed,
        bf16=bf16,
    )


def second_text_from(augment: AugmentSettings, backbone: Backbone, seed: int) -> Callable[[str, int], str] | None:
    """Return the function that changes the second copy's text, or None."""
    if augment.mask_span == 0:
        return None
    token = str(backbone.tokenizer.id_to_token(backbone.special_ids["mask"]))
    return lambda text, row: mask_span(
        text, characters=augment.mask_span, mask_token=token, rng=np.random.default_rng([seed, row])
    )
