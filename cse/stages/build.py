"""From settings to parts: the last place that sees a settings object on its way down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.encoder import SentenceEncoder
from cse.model.generator import UNIGRAM, Generator, UnigramGenerator, load_generator
from cse.model.mlm_head import load_mlm_head
from cse.model.prompt_init import start_from_checkpoint, start_from_text
from cse.model.prompts import Prompt
from cse.model.static_words import StaticWords
from cse.model.template import Template, make_template
from cse.objectives.combine import Objective, build_objective
from cse.settings.groups.augment import AugmentSettings
from cse.settings.groups.objective import ObjectiveSettings, ReplacedTokensSettings
from cse.settings.groups.pooler import PoolerSettings
from cse.settings.groups.prompt import PromptSettings
from cse.settings.groups.template import TemplateSettings
from cse.settings.groups.train import TrainSettings
from cse.stages.common import CORRUPTION_FILE
from cse.training.augment import mask_span
from cse.training.batch import Augmentation, Cut
from cse.training.corruption import Corruption, Source, Vocabulary, on_the_fly, prepared
from cse.training.loop import Plan
from cse.training.losses import Losses, Term
from cse.training.terms.copies import ContrastiveTension, MomentumQueue, SelfGuided
from cse.training.terms.heads import MutualInformation, NliSoftmax
from cse.training.terms.masked_lm import MaskedLm
from cse.training.terms.replaced_tokens import ReplacedTokens
from cse.training.tokens import TokenTable

# terms that read one copy of each sentence; the others compare at least two
_ONE_VIEW = {"masked_lm", "contrastive_tension", "self_guided", "mutual_information"}


def encoder_from(
    backbone: Backbone | StaticWords,
    prompt: PromptSettings,
    template: TemplateSettings,
    pooler: PoolerSettings,
    augment: AugmentSettings,
    train: TrainSettings,
) -> SentenceEncoder:
    """Build the encoder to train, newly initialised from ``train.seed``.

    Raises:
        CseError: the position table is too short for the prompt and ``train.max_length``, a template that leaves no
            room for a sentence, or a start of the prompt that is not there.
    """
    torch.manual_seed(train.seed)
    if isinstance(backbone, StaticWords) and train.parameters != "none":
        raise CseError(
            f"train.parameters: {backbone.files.name} holds word vectors, which are not trained; set it to none "
            "(and prompt.kind: none)"
        )
    if not augment.dropout and isinstance(backbone, Backbone):
        backbone.switch_dropout_off()
    made = (
        _prompt_from(prompt, backbone, train.new_layers)
        if prompt.kind != "none" and isinstance(backbone, Backbone)
        else None
    )
    encoder = SentenceEncoder(
        backbone,
        made,
        pooler=pooler.kind,
        loss_pooler=pooler.kind_in_loss,
        mlp=pooler.mlp,
        projector=pooler.projector,
        first_layer=pooler.first_layer,
        position_shift=prompt.position_shift,
        cls=prompt.cls,
        templates=_templates_from(template, backbone, train.max_length) if isinstance(backbone, Backbone) else (),
        denoise=template.denoise,
        frozen=train.parameters != "full",
        new_layers=train.new_layers,
    )
    _check_length(encoder, train.max_length)
    return encoder


def _prompt_from(prompt: PromptSettings, backbone: Backbone, new_layers: str) -> Prompt:
    made = Prompt(
        prompt.kind,
        backbone,
        length=prompt.length,
        dropout=backbone.hidden_dropout if prompt.dropout is None else prompt.dropout,
        init_std=prompt.init_std,
        shared=prompt.layers == "shared",
        reparametrize=prompt.reparametrize,
        reparametrize_width=prompt.reparametrize_width,
        new_layers=new_layers,
    )
    if prompt.init == "text":
        start_from_text(made, backbone, prompt.init_text)
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
                f"template.text: {one.text!r} has {len(one.ids)} tokens, which leaves none of the {max_length} of "
                "train.max_length for the sentence; shorten it or raise train.max_length"
            )
    return made


def _check_length(encoder: SentenceEncoder, max_length: int) -> None:
    backbone = encoder.backbone
    if max_length > encoder.max_length and encoder.shift == 0:
        raise CseError(
            f"train.max_length: {max_length} tokens, but {backbone.files.name} has {encoder.max_length} of "
            f"{backbone.max_positions} positions for them; lower it"
        )
    if max_length > encoder.max_length:
        raise CseError(
            f"prompt.length: {encoder.shift} leaves {encoder.max_length} of the {backbone.max_positions} positions of "
            f"{backbone.files.name}, fewer than train.max_length {max_length}; lower one of the two"
        )


def views_of(objective: ObjectiveSettings) -> int | None:
    """Return how many views the loss reads: 1 where no term compares copies, None for all."""
    return 1 if set(objective.terms()) <= _ONE_VIEW else None


def second_text_from(augment: AugmentSettings, backbone: Backbone, seed: int) -> Callable[[str, int], str] | None:
    """Return the change of the second copy's text, or None."""
    if augment.mask_span == 0:
        return None
    token = str(backbone.tokenizer.id_to_token(backbone.special_ids["mask"]))
    return lambda text, row: mask_span(
        text, characters=augment.mask_span, mask_token=token, rng=np.random.default_rng([seed, row])
    )


def objective_from(objective: ObjectiveSettings) -> Objective:
    """Compose the terms over the views' embeddings."""
    return build_objective(
        nt_xent_weight=objective.nt_xent.weight,
        temperature=objective.nt_xent.temperature,
        hard_negative_weight=objective.nt_xent.hard_negative_weight,
        two_views=objective.nt_xent.two_views,
        hinge_weight=objective.energy_hinge.weight,
        margin=objective.energy_hinge.margin,
    )


def losses_from(
    objective: ObjectiveSettings,
    encoder: SentenceEncoder,
    table: TokenTable,
    train: TrainSettings,
    *,
    corrupted: Path,
    device: torch.device,
) -> Losses:
    """Compose the whole loss.

    Args:
        objective: the terms.
        encoder: the encoder that is trained.
        table: training rows, for a unigram generator.
        train: seed and epochs.
        corrupted: folder of a corruption made beforehand.
        device: where a generator runs.

    Raises:
        CseError: a head, generator or corruption that a term needs is not there.
    """
    terms: list[Term] = []
    if objective.masked_lm.weight > 0:
        terms.append(_masked_lm_from(objective, encoder, train))
    if objective.replaced_tokens.weight > 0:
        terms.append(_replaced_tokens_from(objective.replaced_tokens, encoder, table, train, corrupted, device))
    if objective.contrastive_tension.weight > 0:
        tension = objective.contrastive_tension
        terms.append(ContrastiveTension(encoder, weight=tension.weight, group=tension.group))
    if objective.self_guided.weight > 0:
        terms.append(SelfGuided(encoder, **objective.self_guided.model_dump()))
    if objective.mutual_information.weight > 0:
        terms.append(MutualInformation(objective.mutual_information.weight))
    if objective.nli_softmax.weight > 0:
        terms.append(NliSoftmax(encoder, weight=objective.nli_softmax.weight))
    contrast, queue = objective.nt_xent, None
    if contrast.queue > 0 and contrast.weight > 0:
        queue = MomentumQueue(
            encoder,
            size=contrast.queue,
            momentum=contrast.momentum,
            follow_projector=contrast.queue_projector == "following",
        )
    return Losses(objective_from(objective), terms, queue)


def _masked_lm_from(objective: ObjectiveSettings, encoder: SentenceEncoder, train: TrainSettings) -> MaskedLm:
    settings = objective.masked_lm
    head = load_mlm_head(encoder.backbone, wanted_by="objective.masked_lm.weight")
    if settings.train_head:
        head.untie(encoder.backbone.model.embeddings.word_embeddings.weight)
    return MaskedLm(
        encoder,
        head,
        vocabulary_of(encoder.backbone),
        weight=settings.weight,
        mask_share=settings.mask_share,
        decay_rate=settings.decay_rate,
        decay_steps=settings.decay_steps,
        seed=train.seed,
    )


def _replaced_tokens_from(
    settings: ReplacedTokensSettings,
    encoder: SentenceEncoder,
    table: TokenTable,
    train: TrainSettings,
    corrupted: Path,
    device: torch.device,
) -> ReplacedTokens:
    if settings.corrupts_beforehand:
        _check_corruption(corrupted / CORRUPTION_FILE, corruption_facts(settings, train.seed))
        source: Source = prepared(corrupted, table, epochs=train.epochs)
    else:
        source = on_the_fly(
            corruption_from(settings, train.seed),
            vocabulary_of(encoder.backbone),
            generator_from(settings, encoder.backbone, table, device),
        )
    return ReplacedTokens(
        encoder,
        source,
        weight=settings.weight,
        discriminator=settings.discriminator,
        condition=settings.condition,
        normalize=settings.normalize,
        separate_draw=settings.prompt_draw == "separate",
        learning_rate=settings.copy_learning_rate,
    )


def corruption_from(settings: ReplacedTokensSettings, seed: int) -> Corruption:
    """Turn the settings of replaced-token detection into plain values."""
    return Corruption(
        mask_share=settings.mask_share,
        choice=settings.choice,
        positions=settings.positions,
        protect_special=settings.protect_special,
        seed=seed,
    )


def corruption_facts(settings: ReplacedTokensSettings, seed: int) -> dict[str, Any]:
    """Return what decides how rows are corrupted, as JSON values."""
    generator = {"generator": settings.generator_model, "generator_revision": settings.generator_revision}
    return generator | asdict(corruption_from(settings, seed))


def _check_corruption(path: Path, wanted: dict[str, Any]) -> None:
    """Refuse rows that were corrupted in another way: ``cse train -s`` may change what ``prepare`` went by."""
    again = "run `cse prepare` (or `dvc repro`) again"
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise CseError(f"{path}: missing or cut off; {again}") from None
    if made["corruption"] == "none":
        raise CseError(f"{path.parent}: holds no corrupted rows; {again} with the settings of this training")
    for name, value in wanted.items():
        if made[name] != value:
            raise CseError(f"{path.parent}: was made with {name} {made[name]!r}, wanted is {value!r}; {again}")


def generator_from(
    settings: ReplacedTokensSettings, backbone: Backbone, table: TokenTable, device: torch.device
) -> Generator:
    """Load the generator, or count tokens for a unigram one.

    Raises:
        CseError: no such model, no head, or another vocabulary than the backbone's.
    """
    if settings.generator == UNIGRAM:
        vocabulary = vocabulary_of(backbone)
        return UnigramGenerator([column.ids for column in table.columns], vocabulary.size, vocabulary.special)
    dropout = settings.generator_dropout and settings.corruption == "on_the_fly"
    check_generator(settings)
    return load_generator(
        settings.generator_model, settings.generator_revision, backbone, dropout=dropout, device=device
    )


def check_generator(settings: ReplacedTokensSettings) -> None:
    """Refuse a folder where a hub id belongs: nothing would notice when its files change.

    Raises:
        CseError: it is one.
    """
    key = "objective.replaced_tokens.generator"
    if settings.generator not in (UNIGRAM, "folder") and Path(settings.generator).is_dir():
        raise CseError(f"{key}: {settings.generator} is a folder; set {key}: folder and name it in {key}_folder")


def vocabulary_of(backbone: Backbone) -> Vocabulary:
    """Return what masking needs to know of a backbone's vocabulary."""
    special = backbone.special_ids
    return Vocabulary(backbone.tokenizer.get_vocab_size(), special["mask"], (*special.values(), backbone.pad_id))


def plan_from(train: TrainSettings, augment: AugmentSettings, backbone: Backbone, *, bf16: bool) -> Plan:
    """Turn the training settings into plain values for the loop."""
    special = vocabulary_of(backbone).special if augment.repeat_words > 0 else ()
    return Plan(
        learning_rate=train.learning_rate,
        batch_size=train.batch_size,
        epochs=train.epochs,
        warmup_share=train.warmup_share,
        weight_decay=train.weight_decay,
        clip_norm=train.clip_norm,
        optimizer=train.optimizer,
        betas=(train.beta1, train.beta2),
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
