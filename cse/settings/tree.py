"""The settings tree: the groups of ``params.yaml`` and the combinations of values that cannot work.

Each stage receives only the groups it declares in ``dvc.yaml``. Losses and training take their own groups; other code
below the builders is made without settings.
"""

from __future__ import annotations

from pydantic import ValidationInfo, model_validator

from cse.errors import nearest
from cse.settings.data import DataSettings, MineSettings
from cse.settings.group import SettingsGroup
from cse.settings.model import BackboneSettings, PoolerSettings, PostSettings, PromptSettings, TemplateSettings
from cse.settings.objective import LossSettings, ObjectiveSettings
from cse.settings.outcome import BankSettings, EvaluationSettings, ExportSettings, PromotionSettings, TuneSettings
from cse.settings.train import AugmentSettings, TrainSettings

ANY_VIEW = "any view"  # in the validation context: accept an objective that does not fit data.view


class Settings(SettingsGroup):
    """All settings in ``params.yaml``."""

    data: DataSettings = DataSettings()
    mine: MineSettings = MineSettings()
    backbone: BackboneSettings = BackboneSettings()
    prompt: PromptSettings = PromptSettings()
    template: TemplateSettings = TemplateSettings()
    pooler: PoolerSettings = PoolerSettings()
    post: PostSettings = PostSettings()
    augment: AugmentSettings = AugmentSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    train: TrainSettings = TrainSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    promotion: PromotionSettings = PromotionSettings()
    tune: TuneSettings = TuneSettings()
    bank: BankSettings = BankSettings()

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Settings:
        of_rows = [] if (info.context or {}).get(ANY_VIEW) else impossible_rows(self)
        for problem in [*impossible(self), *of_rows]:
            raise ValueError(problem)
        return self


def impossible(settings: Settings) -> list[str]:
    """Return combinations that cannot work on any rows, each as ``key: problem and fix``."""
    checks = (_unknown_terms, _prompt_problems, _read_out_problems, _term_problems)
    return [problem for check in checks for applies, problem in check(settings) if applies]


def impossible_rows(settings: Settings) -> list[str]:
    """Return combinations that cannot be trained on rows of ``data.view``, in the format of ``impossible``."""
    found = [*_view_problems(settings), *_source_problems(settings)]
    return [problem for applies, problem in found if applies]


def _terms(settings: Settings, objective: ObjectiveSettings) -> dict[str, LossSettings]:
    return {} if settings.train.parameters == "none" else objective.terms()


def _views(settings: Settings) -> list[str]:
    """Return the views of the rows of all sources, the main one first."""
    data = settings.data
    return [settings.mine.view(data.rows), *(data.of(source).rows for source in data.more)]


def _unknown_terms(settings: Settings) -> list[tuple[bool, str]]:
    known = list(ObjectiveSettings.model_fields)
    return [
        (
            name not in known,
            f"data.more.{source.name}.terms: no term {name!r}{nearest(name, known)}; the terms are {', '.join(known)}",
        )
        for source in settings.data.more
        for name in source.terms or {}
    ]


def _prompt_problems(settings: Settings) -> list[tuple[bool, str]]:
    prompt, trained, pooler = settings.prompt, settings.train.parameters, settings.pooler
    extras = prompt.cls or settings.template.trained or pooler.kind == "cnn"
    return [
        (
            trained == "prompts" and prompt.kind == "none" and not extras,
            "prompt.kind: 'none' leaves nothing to train with train.parameters: prompts; choose 'key_value' or "
            "'hidden_state', or set train.parameters: full",
        ),
        (
            trained == "none" and (prompt.kind != "none" or extras or pooler.mlp != "none"),
            "train.parameters: 'none' would leave prompt and projector at random values; set prompt.kind: none and "
            "pooler.mlp: none, and do not use prompt.cls, template.trained or pooler.kind cnn",
        ),
        (
            prompt.kind != "none" and prompt.length == 0,
            "prompt.length: a prompt needs at least 1 vector; give 1 or more, or set prompt.kind: none",
        ),
        (
            settings.post.kind == "query_map" and prompt.side != "query",
            "post.kind: query_map maps queries alone; set prompt.side: query",
        ),
        (
            settings.objective.collection.weight > 0 and trained != "none" and prompt.side != "query",
            "objective.collection.weight: documents keep their vectors, so it trains queries alone; set prompt.side: "
            "query",
        ),
        (
            prompt.kind == "input" and prompt.layers == "shared",
            "prompt.layers: an 'input' prompt exists only before the first layer; set it to separate",
        ),
    ]


def _read_out_problems(settings: Settings) -> list[tuple[bool, str]]:
    pooler, template, augment = settings.pooler, settings.template, settings.augment
    return [
        (
            (pooler.kind == "mask") != template.masked,
            "pooler.kind: 'mask' and a template.text with {mask} require each other; give both or neither",
        ),
        (
            template.text is not None and not template.masked and pooler.kind != "last",
            "pooler.kind: a template.text without {mask} is read at the last token; set it to last",
        ),
        (
            pooler.kind_in_loss is not None and pooler.kind in ("mask", "cnn"),
            f"pooler.kind_in_loss: the loss must use {pooler.kind!r} too; set it to null",
        ),
        (
            augment.shuffle_special and not augment.shuffle_tokens,
            "augment.shuffle_special: has no effect without augment.shuffle_tokens; set that to true",
        ),
        (
            augment.attention_dropout is not None and not augment.dropout,
            "augment.attention_dropout: has no effect without augment.dropout; set that to true",
        ),
        (
            pooler.projector == "batch_norm" and pooler.mlp == "always",
            "pooler.mlp: the 'batch_norm' projector is for the loss only; set it to train_only",
        ),
        (
            template.text is not None and settings.prompt.kind == "input",
            "prompt.kind: an 'input' prompt cannot be combined with a template; choose one",
        ),
    ]


def _view_problems(settings: Settings) -> list[tuple[bool, str]]:
    rows, objective, terms = settings.data.rows, settings.objective, _terms(settings, settings.objective)
    views = _views(settings)
    view = views[0]
    return [
        (
            settings.mine.neighbours > 0 and rows != "sentences",
            f"mine.neighbours: pairs are made of sentences, but data.view is {rows!r}; set it to 0 or data.view: "
            "sentences",
        ),
        (
            settings.mine.negatives > 0 and rows != "pairs" and not settings.mine.neighbours,
            f"mine.negatives: negatives are mined for pairs, but data.view is {rows!r}; set it to 0 or data.view: "
            "pairs, categories or documents",
        ),
        (
            settings.template.second is not None and view != "sentences",
            f"template.second: two templates need data.view 'sentences', found {view!r}; remove it",
        ),
        *(
            (
                view not in term.views or (term.labels and settings.data.view != "categories"),
                f"objective.{name}.weight: needs {term.rows}, but data.view is {settings.data.view!r}; set the weight "
                f"to 0 (-s objective.{name}.weight=0) or data.view: "
                f"{'categories' if term.labels else ' or '.join(term.views)}"
                + (", or mine.negatives: 1" if rows == "pairs" and "triplets" in term.views else ""),
            )
            for name, term in terms.items()
        ),
        (
            "nt_xent" in terms and objective.nt_xent.hard_negative_weight != 0 and "triplets" not in views,
            f"objective.nt_xent.hard_negative_weight: data.view {view!r} has no hard negatives; set it to 0",
        ),
        (
            "nt_xent" in terms and objective.nt_xent.two_views and view == "triplets",
            "objective.nt_xent.two_views: does not support hard negatives; use data.view pairs or sentences",
        ),
    ]


def _source_problems(settings: Settings) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = []
    for source, view in zip(settings.data.more, _views(settings)[1:], strict=True):
        objective, key = settings.objective.of_further(source.terms), f"data.more.{source.name}"
        terms = _terms(settings, objective)
        found += [
            (
                settings.train.parameters != "none" and not terms,
                f"{key}.terms: every term has weight 0; give one a weight above 0, or remove the source",
            ),
            *(
                (
                    view not in term.views,
                    f"{key}: holds {view}, but objective.{name} needs {term.rows}; set its terms: {{{name}: 0}}, or "
                    f"view: {' or '.join(term.views)}",
                )
                for name, term in terms.items()
            ),
            (
                "nt_xent" in terms and objective.nt_xent.two_views and view == "triplets",
                f"{key}: objective.nt_xent.two_views does not support hard negatives; use view pairs or sentences",
            ),
            (
                settings.template.second is not None and view != "sentences",
                f"{key}: holds {view}, but template.second needs sentences; remove one of the two",
            ),
        ]
    return found


def _term_problems(settings: Settings) -> list[tuple[bool, str]]:
    objective, train = settings.objective.over(settings.data.more_terms), settings.train
    terms = _terms(settings, objective)
    group, replaced = objective.contrastive_tension.group, objective.replaced_tokens
    detects = "replaced_tokens" in terms
    return [
        (
            objective.nt_xent.queue > 0 and (objective.nt_xent.two_views or "nt_xent" not in terms),
            "objective.nt_xent.queue: needs nt_xent without two_views; set queue: 0",
        ),
        (
            "mutual_information" in terms and settings.pooler.kind != "cnn",
            "objective.mutual_information.weight: needs pooler.kind: cnn",
        ),
        (
            "contrastive_tension" in terms and train.batch_size % group != 0,
            f"train.batch_size: {train.batch_size} is not a multiple of {group}, the rows of a group of "
            "objective.contrastive_tension",
        ),
        (
            "contrastive_tension" in terms and train.distinct_batches,
            "train.distinct_batches: objective.contrastive_tension fills its groups from whole batches, and these are "
            "uneven; set it to false",
        ),
        (
            replaced.corrupts_beforehand and settings.augment.repeat_words > 0,
            "augment.repeat_words: would change rows after they were corrupted; set it to 0 or "
            "objective.replaced_tokens.corruption: on_the_fly",
        ),
        (
            detects and train.parameters not in ("prompts", "none") and replaced.discriminator != "copy",
            f"objective.replaced_tokens.discriminator: train.parameters: {train.parameters} changes the backbone; set "
            "it to copy",
        ),
        (
            replaced.corrupts_beforehand and settings.mine.wanted,
            "mine: rows corrupted before training cannot be mined; set mine.negatives and mine.neighbours to 0, or "
            "objective.replaced_tokens.corruption: on_the_fly",
        ),
        (
            replaced.corrupts_beforehand and bool(settings.data.more),
            "data.more: only the rows of the main source can be corrupted before training; set it to [], or "
            "objective.replaced_tokens.corruption: on_the_fly",
        ),
        (
            detects and (settings.template.text is not None or settings.prompt.kind == "input"),
            "objective.replaced_tokens.weight: cannot be combined with a template or an 'input' prompt; set it to 0",
        ),
    ]
