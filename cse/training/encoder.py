"""The backbone that settings name, and the encoder to train on it with the texts of its roles."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from cse.artifact import short
from cse.choices import ReadOut
from cse.data.store import VIEW_COLUMNS, PreparedData
from cse.data.tasks.kinds import ScoredPairs, all_texts, of_kind
from cse.data.tasks.store import DEV, OWN, TEST, open_tasks
from cse.errors import CseError, in_terms_of
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint import read_config, read_weights
from cse.model.declared import is_word_file
from cse.model.prompts import INPUT, Prompt
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords, find_words, load_words, words_of
from cse.model.template import Template, make_template
from cse.runtime.tokens import plain_copy
from cse.runtime.uses import text_of
from cse.settings import Settings
from cse.settings.model import BackboneSettings, PoolerSettings, PromptSettings, TemplateSettings
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import AugmentSettings, TrainSettings
from cse.training.augment import most_repeated

_INIT_STD = 0.02  # of a new prompt, as in the released code


def encoder_from(backbone: Backbone | StaticWords, settings: Settings) -> SentenceEncoder:
    """Build the encoder to train, initialised from ``train.seed``."""
    prompt, pooler, augment, train = settings.prompt, settings.pooler, settings.augment, settings.train
    torch.manual_seed(train.seed)
    made, templates = None, []
    if isinstance(backbone, Backbone):
        if not augment.dropout:
            backbone.switch_dropout_off()
        if augment.attention_dropout is not None:
            backbone.set_attention_dropout(augment.attention_dropout)
        if prompt.kind != "none":
            made = _prompt_from(prompt, backbone, train.new_layers)
        templates = _templates_from(settings.template, backbone, train.max_length)
    elif train.parameters != "none":
        raise CseError(
            f"train.parameters: {backbone.files.name} holds word vectors, which cannot be trained; set it to none "
            "(and prompt.kind: none)"
        )
    encoder = SentenceEncoder(
        backbone,
        made,
        ReadOut(**pooler.model_dump(), denoise=settings.template.denoise, start=train.new_layers),
        cls=prompt.cls,
        templates=templates,
        trained="prompts" if train.parameters == "none" else train.parameters,
        lora_rank=train.lora_rank if train.parameters == "lora" else 0,
        side=prompt.side,
    )
    if train.parameters == "biases" and not any(weight.requires_grad for weight in backbone.parameters()):
        raise CseError(f"train.parameters: {backbone.files.name} has no biases; set it to prompts or full")
    _check_length(encoder, train.max_length, augment)
    return encoder


def check_copies(encoder: SentenceEncoder, settings: Settings, views: Sequence[str]) -> None:
    """Refuse to compare two equal copies of a sentence, unless ``augment.dropout`` is off on purpose."""
    backbone, prompt, augment = encoder.backbone, encoder.prompt, settings.augment
    altered = augment.repeat_words or augment.mask_span or augment.cut_features
    altered = altered or augment.shuffle_tokens != "none" or settings.template.second is not None
    noisy = not isinstance(backbone, Backbone) or backbone.has_dropout or (prompt is not None and prompt.dropout > 0.0)
    if "sentences" in views and augment.dropout and not altered and not noisy:
        raise CseError(
            f"augment.attention_dropout: {backbone.files.name} has no dropout, so the two copies of a sentence would "
            "be equal; set it, to 0.3 say, or prompt.dropout"
        )


def _prompt_from(prompt: PromptSettings, backbone: Backbone, new_layers: str) -> Prompt:
    learned = backbone.family.positions != "rotary"
    made = Prompt(
        prompt.kind,
        backbone,
        length=prompt.length,
        dropout=backbone.hidden_dropout if prompt.dropout is None else prompt.dropout,
        init_std=_INIT_STD,
        shared=prompt.layers == "shared",
        position_shift=learned if prompt.position_shift is None else prompt.position_shift,
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


def _check_length(encoder: SentenceEncoder, max_length: int, augment: AugmentSettings) -> None:
    backbone, room, usable = encoder.backbone, encoder.max_length, encoder.backbone.usable_length(encoder.shift)
    name, positions = backbone.files.name, f"{backbone.max_positions} positions"
    repeated = most_repeated(augment.repeat_rule, augment.repeat_words, max_length) if augment.repeat_words else 0
    if room < max_length <= usable:
        words = f"train.max_length: {max_length} tokens, but {name} is declared for {room}; lower it or raise "
        words += "backbone.max_length"
    elif max_length > room and encoder.shift == 0:
        words = f"train.max_length: {max_length} tokens, but {name} has room for {room} in its {positions}; lower it"
    elif max_length > room:
        words = f"prompt.length: {encoder.shift} leaves {room} of the {positions} of {name}, fewer than "
        words += f"train.max_length {max_length}; lower one of the two"
    elif max_length + repeated > usable:
        words = f"augment.repeat_words: {augment.repeat_words} makes rows of {max_length + repeated} tokens out of "
        words += f"{max_length}, but {name} has room for {usable}; lower it or train.max_length"
    else:
        return
    raise CseError(words)


def files_of_backbone(backbone: BackboneSettings) -> BackboneFiles:
    """Find the files of a language model or of word vectors."""
    find = find_words if is_word_file(Path(backbone.name)) else partial(find_backbone, revision=backbone.revision)
    return find(backbone.name)


def open_backbone(backbone: BackboneSettings, pooler: PoolerSettings, data: PreparedData) -> Backbone | StaticWords:
    """Open the language model, or the word vectors of all words in the prepared data."""
    files = files_of_backbone(backbone)
    if is_word_file(Path(backbone.name)):
        return load_words(files, words_of(_every_text(data)), progress=sys.stderr.isatty())
    # its use is as its folder declares, unless the settings say otherwise
    return load_backbone(files, pooler.kind).use_as(max_length=backbone.max_length, texts=backbone.texts)


def _every_text(data: PreparedData) -> Iterator[str]:
    """Yield every text of prepared data: all sources, dev and evaluation."""
    for rows in (data, *map(data.of, data.sources)):
        yield from rows.sentences()
    tested = of_kind(open_tasks(data, TEST), ScoredPairs)
    for task in [*tested, *open_tasks(data, OWN), *open_tasks(data, DEV)]:
        yield from all_texts(task)


# ---- task texts and widths ----------------------------------------------------------------------------------------


def texts_before(encoder: SentenceEncoder, roles: Sequence[str] | None, view: str) -> list[str]:
    """Return the task text that goes before each column of text, or an empty list."""
    if roles is None:
        return []
    columns = columns_of(view)
    if len(roles) < len(columns):
        raise _wrong_number(roles, columns)
    with in_terms_of("train.roles: ", hint="; set backbone.texts"):
        return [text_of(role, encoder.texts) for role in roles][: len(columns)]


def check_roles(
    encoder: SentenceEncoder, roles: Sequence[str] | None, views: Sequence[str], *, max_length: int
) -> None:
    """Refuse roles that do not fit the source with the most columns, or texts that leave sentences less than half."""
    widest = max(views, key=lambda view: len(columns_of(view)))
    for text in texts_before(encoder, roles, widest):
        taken = len(encoder.text_tokenizers.truncating_at(encoder.max_length).encode(text).ids) if text else 0
        if 2 * taken > max_length:
            raise CseError(
                f"train.max_length: the task text {short(text)} takes {taken} of its {max_length} tokens, special "
                f"tokens included, and the sentence needs at least half; raise it to {2 * taken} or shorten "
                "backbone.texts"
            )
    if roles is not None and len(roles) > len(columns_of(widest)):
        raise _wrong_number(roles, columns_of(widest))


def columns_of(view: str) -> list[str]:
    """Return the columns of text of a view."""
    return [name for name in VIEW_COLUMNS[view] if name != "label"]


def _wrong_number(roles: Sequence[str], columns: Sequence[str]) -> CseError:
    return CseError(f"train.roles: {len(roles)} roles for {len(columns)} columns of text ({', '.join(columns)})")


def set_widths(encoder: SentenceEncoder, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Let a model that is trained for shorter vectors offer them."""
    term = objective.matryoshka
    if term.weight == 0 or train.parameters == "none":
        return
    if max(term.widths) >= encoder.dimension:
        raise CseError(
            f"objective.matryoshka.widths: {max(term.widths)} is not below the {encoder.dimension} dimensions of the "
            "embedding"
        )
    encoder.widths = tuple(sorted(set(term.widths)))


# ---- prompts that start from something ----------------------------------------------------------------------------

TEXT = "This sentence can be summarised in one word that carries its whole meaning:"
_AT_RANDOM = "prompt.init: a prompt that trains through a network starts at random"


@torch.no_grad()
def start_from_text(prompt: Prompt, backbone: Backbone, text: str = TEXT) -> None:
    """Initialise a prompt with the activations of a text in the backbone.

    A ``key_value`` prompt gets each layer's keys and values of the text's tokens, a ``hidden_state`` prompt the inputs
    of each layer, an ``input`` prompt the word vectors; a shared prompt gets the mean over layers. Short texts are
    repeated, long ones cut.
    """
    if prompt.table is None:
        raise CseError(_AT_RANDOM)
    ids = plain_copy(backbone.tokenizer).encode(text, add_special_tokens=False).ids
    ids_1P = torch.tensor([(ids * (prompt.length // len(ids) + 1))[: prompt.length]])
    words_1PD = backbone.words(ids_1P)
    if prompt.kind == INPUT:
        prompt.table.copy_(words_1PD[0])
        return
    was_training = backbone.model.training
    backbone.model.eval()
    mask_1P = torch.ones_like(ids_1P)
    positions_1P = backbone.positions(mask_1P, 0)
    states = backbone.run(backbone.embed(words_1PD, positions_1P), positions_1P, mask_1P, None)[:-1]
    backbone.model.train(was_training)
    if prompt.kind == "hidden_state":
        table = torch.cat(states)  # (layers, P, D)
        prompt.table.copy_(table.mean(dim=0, keepdim=True) if prompt.shared else table)
        return
    if prompt.kind != "key_value":
        raise CseError(f"prompt.init: a prompt of kind {prompt.kind} cannot start from a text; set prompt.init: random")
    blocks = backbone.keys_and_values(torch.cat(states))
    pairs = torch.stack([torch.stack(pair) for pair in blocks])  # (layers, 2, H, P, K)
    if prompt.shared:
        pairs = pairs.mean(dim=0, keepdim=True)
    prompt.table.copy_(pairs.permute(3, 0, 1, 2, 4).reshape(prompt.table.shape))


def start_from_checkpoint(prompt: Prompt, backbone: Backbone, folder: Path) -> None:
    """Initialise a prompt from a checkpoint's, for instance one trained by masked language modelling."""
    if prompt.table is None:
        raise CseError(_AT_RANDOM)
    with in_terms_of("prompt.init_checkpoint: "):
        config = read_config(folder)
        made_for, other = config["backbone"], config["prompt"]
        weights = {} if other is None else read_weights(folder, config)
        table = weights.get("prompt.table")
        if other is None or table is None:
            raise CseError(f"the checkpoint in {folder} holds no prompt")
        if config["parameters"] != "prompts":
            raise CseError(
                f"the prompt in {folder} was trained with weights of its backbone; use one trained on a frozen backbone"
            )
        if made_for["sha256"] != backbone.files.sha256:
            own = f"{backbone.files.name} ({backbone.files.sha256[:12]}...)"
            raise CseError(
                f"the prompt in {folder} was trained on {made_for['name']} (SHA-256 {made_for['sha256'][:12]}...), but "
                f"the backbone is {own}; use the backbone it was trained on"
            )
        if (other["kind"], other["shared"]) != (prompt.kind, prompt.shared):
            layers, own_layers = ("shared" if shared else "separate" for shared in (other["shared"], prompt.shared))
            raise CseError(
                f"the prompt in {folder} is {other['kind']}, {layers}, but this one is {prompt.kind}, {own_layers}; "
                "use the same prompt.kind and prompt.layers"
            )
        if table.shape != prompt.table.shape:
            raise CseError(
                f"the prompt in {folder} has shape {tuple(table.shape)}, but this one has "
                f"{tuple(prompt.table.shape)}; use the same prompt.kind, prompt.length and prompt.layers"
            )
    with torch.no_grad():
        prompt.table.copy_(table)
