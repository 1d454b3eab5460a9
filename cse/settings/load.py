"""The settings: the groups of ``params.yaml``, combinations of values that cannot work, and reading them from a file.

Refusals stand in two lists: of what cannot work on any rows, and of what cannot be trained on rows of ``data.view``.
Each mistake is one line naming the key. A stage reads only the groups that ``dvc.yaml`` names for it;
``tests/stages/test_uses.py`` holds it to that.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cse.errors import CseError, nearest
from cse.settings.data import DataSettings, MineSettings, SourceSettings
from cse.settings.group import SettingsGroup
from cse.settings.model import BackboneSettings, PoolerSettings, PostSettings, PromptSettings, TemplateSettings
from cse.settings.objective import LossSettings, ObjectiveSettings
from cse.settings.outcome import BankSettings, EvaluationSettings, ExportSettings, PromotionSettings, TuneSettings
from cse.settings.train import AugmentSettings, TrainSettings

PARAMS_FILE = Path("params.yaml")
_MOST_BYTES = 1 << 18  # of a settings file; the default has 14 kB
_LARGEST = 1 << 63
_SHOWN = 100  # characters of a wrong value in an error
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
        any_view = (info.context or {}).get(ANY_VIEW, False)
        checks = [_impossible_terms, _impossible_prompts, _impossible_read_outs, _impossible_losses]
        for check in [*checks, *([] if any_view else [impossible_rows])]:
            for problem in check(self):
                raise ValueError(problem)
        return self


def _impossible_terms(settings: Settings) -> Iterator[str]:
    known = list(ObjectiveSettings.model_fields)
    for source in settings.data.more:
        for name in source.terms or {}:
            if name not in known:
                fix = f"no term {name!r}{nearest(name, known)}; the terms are {', '.join(known)}"
                yield f"data.more.{source.name}.terms: {fix}"


def _impossible_prompts(settings: Settings) -> Iterator[str]:
    prompt, pooler, trained = settings.prompt, settings.pooler, settings.train.parameters
    extras = prompt.cls or settings.template.trained or pooler.kind == "cnn"
    if trained == "prompts" and prompt.kind == "none" and not extras:
        yield (
            "prompt.kind: 'none' leaves nothing to train with train.parameters: prompts; choose 'key_value' or "
            "'hidden_state', or set train.parameters: full"
        )
    if trained == "none" and (prompt.kind != "none" or extras or pooler.mlp != "none"):
        yield (
            "train.parameters: 'none' would leave prompt and projector at random values; set prompt.kind: none and "
            "pooler.mlp: none, and do not use prompt.cls, template.trained or pooler.kind cnn"
        )
    if prompt.kind != "none" and prompt.length == 0:
        yield "prompt.length: a prompt needs at least 1 vector; give 1 or more, or set prompt.kind: none"
    if settings.post.kind == "query_map" and prompt.side != "query":
        yield "post.kind: query_map maps queries alone; set prompt.side: query"
    if settings.objective.collection.weight > 0 and trained != "none" and prompt.side != "query":
        yield (
            "objective.collection.weight: documents keep their vectors, so it trains queries alone; set prompt.side: "
            "query"
        )
    if prompt.kind == "input" and prompt.layers == "shared":
        yield "prompt.layers: an 'input' prompt exists only before the first layer; set it to separate"


def _impossible_read_outs(settings: Settings) -> Iterator[str]:
    pooler, template, augment = settings.pooler, settings.template, settings.augment
    if (pooler.kind == "mask") != template.masked:
        yield "pooler.kind: 'mask' and a template.text with {mask} require each other; give both or neither"
    if template.text is not None and not template.masked and pooler.kind != "last":
        yield "pooler.kind: a template.text without {mask} is read at the last token; set it to last"
    if pooler.kind_in_loss is not None and pooler.kind in ("mask", "cnn"):
        yield f"pooler.kind_in_loss: the loss must use {pooler.kind!r} too; set it to null"
    if augment.attention_dropout is not None and not augment.dropout:
        yield "augment.attention_dropout: has no effect without augment.dropout; set that to true"
    if pooler.projector == "batch_norm" and pooler.mlp == "always":
        yield "pooler.mlp: the 'batch_norm' projector is for the loss only; set it to train_only"
    if template.text is not None and settings.prompt.kind == "input":
        yield "prompt.kind: an 'input' prompt cannot be combined with a template; choose one"
    if pooler.mlp == "train_only" and "matryoshka" in _terms(
        settings, settings.objective.over(settings.data.more_terms)
    ):
        yield "objective.matryoshka.widths: the loss sees the projector's output; set pooler.mlp to none or always"


def _impossible_losses(settings: Settings) -> Iterator[str]:
    objective = settings.objective.over(settings.data.more_terms)
    terms, train, replaced = _terms(settings, objective), settings.train, objective.replaced_tokens
    group, templated = objective.contrastive_tension.group, settings.template.text is not None
    if train.early_stop is not None and terms and not objective.comparing:
        yield (
            f"train.early_stop: objective.{objective.first} compares no sentences, so the dev score cannot stop this "
            "training; set it to null"
        )
    if objective.nt_xent.queue > 0 and (objective.nt_xent.two_views or "nt_xent" not in terms):
        yield "objective.nt_xent.queue: needs nt_xent without two_views; set queue: 0"
    if "mutual_information" in terms and settings.pooler.kind != "cnn":
        yield "objective.mutual_information.weight: needs pooler.kind: cnn"
    if "contrastive_tension" in terms and train.batch_size % group != 0:
        yield (
            f"train.batch_size: {train.batch_size} is not a multiple of {group}, the rows of a group of "
            "objective.contrastive_tension"
        )
    if "contrastive_tension" in terms and train.distinct_batches:
        yield (
            "train.distinct_batches: objective.contrastive_tension fills its groups from whole batches, and these are "
            "uneven; set it to false"
        )
    if "replaced_tokens" in terms and train.parameters != "prompts" and replaced.discriminator != "copy":
        yield (
            f"objective.replaced_tokens.discriminator: train.parameters: {train.parameters} changes the backbone; set "
            "it to copy"
        )
    if "replaced_tokens" in terms and (templated or settings.prompt.kind == "input"):
        yield "objective.replaced_tokens.weight: cannot be combined with a template or an 'input' prompt; set it to 0"
    afresh = "objective.replaced_tokens.corruption: on_the_fly"
    augment, data, unmined = settings.augment, settings.data, "set mine.negatives and mine.neighbours to 0,"
    beforehand = (
        (augment.repeat_words > 0, "augment.repeat_words: would change rows after they were corrupted; set it to 0"),
        (augment.mask_span > 0, "augment.mask_span: would change rows after they were corrupted; set it to 0"),
        (train.roles is not None, "train.roles: rows are corrupted beforehand without task texts; set it to null"),
        (settings.mine.wanted, f"mine: rows corrupted before training cannot be mined; {unmined}"),
        (data.more, "data.more: only the rows of the main source can be corrupted before training; set it to [],"),
    )
    yield from (f"{words} or {afresh}" for when, words in beforehand if when and replaced.corrupts_beforehand)


def impossible_rows(settings: Settings) -> Iterator[str]:
    """Yield what cannot be trained on rows of ``data.view`` and of the further sources, as ``key: problem and fix``."""
    data, mine, nt_xent = settings.data, settings.mine, settings.objective.nt_xent
    terms, view = _terms(settings, settings.objective), mine.view(data.rows)
    views = [view, *(data.of(source).rows for source in data.more)]
    if mine.neighbours > 0 and data.rows != "sentences":
        yield (
            f"mine.neighbours: pairs are made of sentences, but data.view is {data.rows!r}; set it to 0 or data.view: "
            "sentences"
        )
    if mine.negatives > 0 and data.rows != "pairs" and not mine.neighbours:
        yield (
            f"mine.negatives: negatives are mined for pairs, but data.view is {data.rows!r}; set it to 0 or data.view: "
            "pairs, categories or documents"
        )
    if settings.template.second is not None and view != "sentences":
        yield f"template.second: two templates need data.view 'sentences', found {view!r}; remove it"
    for name, term in terms.items():
        if view not in term.views or (term.labels and data.view != "categories"):
            yield (
                f"objective.{name}.weight: needs {term.rows}, but data.view is {data.view!r}; set the weight "
                f"to 0 (-s objective.{name}.weight=0) or data.view: "
                f"{'categories' if term.labels else ' or '.join(term.views)}"
                + (", or mine.negatives: 1" if data.rows == "pairs" and "triplets" in term.views else "")
            )
    if "nt_xent" in terms and nt_xent.hard_negative_weight != 0 and "triplets" not in views:
        yield f"objective.nt_xent.hard_negative_weight: data.view {view!r} has no hard negatives; set it to 0"
    if "nt_xent" in terms and nt_xent.two_views and view == "triplets":
        yield "objective.nt_xent.two_views: does not support hard negatives; use data.view pairs or sentences"
    for source, held in zip(data.more, views[1:], strict=True):
        yield from _impossible_source(settings, source, held)


def _impossible_source(settings: Settings, source: SourceSettings, view: str) -> Iterator[str]:
    key, terms = f"data.more.{source.name}", _terms(settings, settings.objective.of_further(source.terms))
    if settings.train.parameters != "none" and not terms:
        yield f"{key}.terms: every term has weight 0; give one a weight above 0, or remove the source"
    for name, term in terms.items():
        if view not in term.views:
            yield (
                f"{key}: holds {view}, but objective.{name} needs {term.rows}; set its terms: {{{name}: 0}}, or "
                f"view: {' or '.join(term.views)}"
            )
    if "nt_xent" in terms and settings.objective.nt_xent.two_views and view == "triplets":
        yield f"{key}: objective.nt_xent.two_views does not support hard negatives; use view pairs or sentences"
    if settings.template.second is not None and view != "sentences":
        yield f"{key}: holds {view}, but template.second needs sentences; remove one of the two"


def _terms(settings: Settings, objective: ObjectiveSettings) -> dict[str, LossSettings]:
    return {} if settings.train.parameters == "none" else objective.terms()


# ---- reading ------------------------------------------------------------------------------------------------------


def load_settings(
    path: Path | str = PARAMS_FILE, overrides: Mapping[str, Any] | None = None, *, any_view: bool = False
) -> Settings:
    """Read and check a settings file; missing keys take their defaults.

    Args:
        overrides: values by dotted key (``{"train.epochs": 2}``) that take precedence over the file.
        any_view: accept an objective that does not fit ``data.view``, for commands that prepare rows but do not train.
    """
    path = Path(path)
    tree = parse_tree(read_text(path), str(path))
    for key, value in (overrides or {}).items():
        check_known(key)
        set_key(tree, key, value)
    return check_settings(tree, where=str(path), any_view=any_view)


def check_known(key: str) -> None:
    """Refuse the key of an override that is no setting, group of settings or part of one: the file is not to blame."""
    known = [name for name, _ in walk_keys()]
    if not any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in known):
        raise CseError(f"{key}: unknown key{nearest(key, known)}")


def read_text(path: Path) -> str:
    """Return the text of a settings file with its line endings unchanged."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise CseError(f"{path}: no such file; `cse preset use NAME` writes one") from None
    if not stat.S_ISREG(facts.st_mode):
        raise CseError(f"{path}: not a regular file; name a settings file")
    if facts.st_size > _MOST_BYTES:
        raise CseError(f"{path}: {facts.st_size:,} bytes, a settings file has at most {_MOST_BYTES:,}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise CseError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


@cache
def packaged(name: str) -> Any:
    """Return the value of a YAML file that lies beside this module."""
    return YAML(typ="safe", pure=True).load(files("cse.settings").joinpath(name).read_text("utf-8"))


def parse_tree(text: str, where: str) -> dict[str, Any]:
    """Return the groups of a settings file."""
    tree = parse_yaml(text, where)
    if not isinstance(tree, dict | None):
        raise CseError(f"{where}: expected groups of settings (data:, train:, ...), found {type(tree).__name__}")
    return tree or {}


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML document."""
    yaml = YAML(typ="safe", pure=True)
    try:
        value = yaml.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise CseError(f"{where}:{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # constructors raise anything on invalid values
        raise CseError(f"{where}: not valid YAML: {_shortened(str(error).splitlines()[0])}") from None
    _check_numbers(value, where)
    return value


def _check_numbers(tree: Any, where: str) -> None:
    seen: set[int] = set()  # an alias may name a value again, or the value it stands in
    todo = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise CseError(f"{where}: {_shortened(hex(value))} does not fit in 64 bits; use a smaller number")
        if isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            todo += [*value, *value.values()] if isinstance(value, dict) else value


def check_settings(tree: Mapping[str, Any], where: str, *, any_view: bool = False) -> Settings:
    """Return a plain tree as ``Settings``; raise a one-line ``CseError`` naming ``where`` and the key."""
    try:
        return Settings.model_validate(tree, context={ANY_VIEW: any_view})
    except ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        raise CseError(f"{where}: {_one_line(dict(first))}{more}") from None


def set_key(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested mapping in place, creating missing groups."""
    *groups, last = key.split(".")
    for group in groups:
        child = tree.setdefault(group, {})
        if not isinstance(child, dict):
            raise CseError(f"{key}: {group!r} is a value, not a group")
        tree = child
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one with dotted keys, in order; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) and value else {f"{prefix}{name}": value}
        )
    return flat


def walk_keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every dotted key of the settings tree with its pydantic field, in definition order."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from walk_keys(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _one_line(problem: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = [name for name, _ in walk_keys()] + list(Settings.model_fields)
        return f"{key}: unknown key{nearest(key, known)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}.{message}" if key else message
    return f"{key}: {message[0].lower()}{message[1:]}, found {_shortened(repr(problem['input']))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
