"""Build the encoder to train from groups ``prompt``, ``template``, ``pooler`` and the dropout of ``augment``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.prompt_init import start_from_checkpoint, start_from_text
from cse.model.prompts import Prompt
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords
from cse.model.template import Template, make_template
from cse.settings.model import PoolerSettings, PromptSettings, TemplateSettings
from cse.settings.train import AugmentSettings, TrainSettings


def encoder_from(
    backbone: Backbone | StaticWords,
    prompt: PromptSettings,
    template: TemplateSettings,
    pooler: PoolerSettings,
    augment: AugmentSettings,
    train: TrainSettings,
) -> SentenceEncoder:
    """Build the encoder to train, initialised from ``train.seed``."""
    torch.manual_seed(train.seed)
    if isinstance(backbone, StaticWords) and train.parameters != "none":
        raise CseError(
            f"train.parameters: {backbone.files.name} holds word vectors, which cannot be trained; set it to none "
            "(and prompt.kind: none)"
        )
    if not augment.dropout and isinstance(backbone, Backbone):
        backbone.switch_dropout_off()
    if augment.attention_dropout is not None and isinstance(backbone, Backbone):
        backbone.set_attention_dropout(augment.attention_dropout)
    made = (
        _prompt_from(prompt, backbone, train.new_layers)
        if prompt.kind != "none" and isinstance(backbone, Backbone)
        else None
    )
    learned = isinstance(backbone, StaticWords) or backbone.family.positions != "rotary"
    encoder = SentenceEncoder(
        backbone,
        made,
        pooler=pooler.kind,
        loss_pooler=pooler.kind_in_loss,
        mlp=pooler.mlp,
        projector=pooler.projector,
        first_layer=pooler.first_layer,
        position_shift=learned if prompt.position_shift is None else prompt.position_shift,
        cls=prompt.cls,
        templates=_templates_from(template, backbone, train.max_length) if isinstance(backbone, Backbone) else (),
        denoise=template.denoise,
        trained="prompts" if train.parameters == "none" else train.parameters,
        lora_rank=train.lora_rank if train.parameters == "lora" else 0,
        new_layers=train.new_layers,
        side=prompt.side,
    )
    if train.parameters == "biases" and not any(weight.requires_grad for weight in backbone.parameters()):
        raise CseError(f"train.parameters: {backbone.files.name} has no biases; set it to prompts or full")
    _check_length(encoder, train.max_length)
    return encoder


def check_copies(
    encoder: SentenceEncoder, augment: AugmentSettings, template: TemplateSettings, views: Sequence[str]
) -> None:
    """Refuse to compare two equal copies of a sentence, unless ``augment.dropout`` is off on purpose.

    Args:
        encoder: from ``encoder_from``.
        template: the same.
    """
    backbone, prompt = encoder.backbone, encoder.prompt
    altered = augment.repeat_words or augment.mask_span or augment.shuffle_tokens or augment.cut_features
    altered = altered or template.second is not None
    noisy = not isinstance(backbone, Backbone) or backbone.has_dropout or (prompt is not None and prompt.dropout > 0.0)
    if "sentences" in views and augment.dropout and not altered and not noisy:
        raise CseError(
            f"augment.attention_dropout: {backbone.files.name} has no dropout, so the two copies of a sentence would "
            "be equal; set it, to 0.3 say, or prompt.dropout"
        )


def _prompt_from(prompt: PromptSettings, backbone: Backbone, new_layers: str) -> Prompt:
    made = Prompt(
        prompt.kind,
        backbone,
        length=prompt.length,
        dropout=backbone.hidden_dropout if prompt.dropout is None else prompt.dropout,
        init_std=prompt.init_std,
        shared=prompt.layers == "shared",
        reparametrize=prompt.init if prompt.init in ("mlp", "lstm") else "none",
        new_layers=new_layers,
    )
    if prompt.init == "text":
        start_from_text(made, backbone)
    elif prompt.init == "checkpoint":
        start_from_checkpoint(made, backbone, Path(prompt.init_checkpoint))
    return made


def _templates_from(template: TemplateSettings, backbone: Backbone, max_length: int) -> list[Template]:
    made = [
        make_template(text, backbone, trained=template.trained, end_with_period=template.end_with_period)
        for text in (template.text, template.second)
        if text is not None
    ]
    for one in made:
        if len(one.ids) >= max_length:
            raise CseError(
                f"template.text: {one.text!r} has {len(one.ids)} tokens, so the {max_length} of "
                "train.max_length leave no room for the sentence; shorten it or raise train.max_length"
            )
    return made


def _check_length(encoder: SentenceEncoder, max_length: int) -> None:
    backbone = encoder.backbone
    if encoder.max_length < max_length <= backbone.usable_length(encoder.shift):
        raise CseError(
            f"train.max_length: {max_length} tokens, but {backbone.files.name} is declared for {encoder.max_length}; "
            "lower it or raise backbone.max_length"
        )
    if max_length > encoder.max_length and encoder.shift == 0:
        raise CseError(
            f"train.max_length: {max_length} tokens, but {backbone.files.name} has room for {encoder.max_length} in "
            f"its {backbone.max_positions} positions; lower it"
        )
    if max_length > encoder.max_length:
        raise CseError(
            f"prompt.length: {encoder.shift} leaves {encoder.max_length} of the {backbone.max_positions} positions of "
            f"{backbone.files.name}, fewer than train.max_length {max_length}; lower one of the two"
        )
