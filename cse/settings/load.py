"""The settings: the groups of ``params.yaml``, combinations of values that cannot work, and reading them from a file.

Refusals are rows ``(when, key, words)``: of what cannot work on any rows, and of what cannot be trained on rows of
``data.view``. Each mistake is one line naming the key. A stage reads only the groups that ``dvc.yaml`` names for it;
``tests/test_architecture.py`` holds it to that.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cse.errors import CseError, nearest
from cse.settings.data import DataSettings, MineSettings
from cse.settings.group import SettingsGroup
from cse.settings.model import BackboneSettings, PoolerSettings, PostSettings, PromptSettings, TemplateSettings
from cse.settings.objective import LossSettings, ObjectiveSettings
from cse.settings.outcome import BankSettings, EvaluationSettings, ExportSettings, PromotionSettings, TuneSettings
from cse.settings.train import AugmentSettings, TrainSettings

PARAMS_FILE = Path("params.yaml")
_MOST_BYTES = 1 << 18  # of a settings file; the default has 14 kB
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
        for check in (_impossible_terms, _impossible_models, _impossible_losses):
            for problem in _told(check(self)):
                raise ValueError(problem)
        for problem in () if any_view else impossible_rows(self):
            raise ValueError(problem)
        return self


Refusal = tuple[object, str, str]  # when, key, what is wrong and what to do


def _impossible_terms(settings: Settings) -> Iterator[Refusal]:
    known = list(ObjectiveSettings.model_fields)
    for source in settings.data.more:
        for name in source.terms or {}:
            fix = f"no term {name!r}{nearest(name, known)}; the terms are {', '.join(known)}"
            yield name not in known, f"data.more.{source.name}.terms", fix


def _impossible_models(settings: Settings) -> list[Refusal]:
    prompt, pooler, template, augment = settings.prompt, settings.pooler, settings.template, settings.augment
    trained, untrained = settings.train.parameters, settings.train.parameters == "none"
    extras = prompt.cls or template.trained or pooler.kind == "cnn"
    templated, widths = template.text is not None, _terms(settings, settings.objective.over(settings.data.more_terms))
    return [
        (trained == "prompts" and prompt.kind == "none" and not extras, "prompt.kind",
         "'none' leaves nothing to train with train.parameters: prompts; choose 'key_value' or 'hidden_state', or set "
         "train.parameters: full"),
        (untrained and (prompt.kind != "none" or extras or pooler.mlp != "none"), "train.parameters",
         "'none' would leave prompt and projector at random values; set prompt.kind: none and pooler.mlp: none, and do "
         "not use prompt.cls, template.trained or pooler.kind cnn"),
        (prompt.kind != "none" and prompt.length == 0, "prompt.length",
         "a prompt needs at least 1 vector; give 1 or more, or set prompt.kind: none"),
        (settings.post.kind == "query_map" and prompt.side != "query", "post.kind",
         "query_map maps queries alone; set prompt.side: query"),
        (prompt.kind == "input" and prompt.layers == "shared", "prompt.layers",
         "an 'input' prompt exists only before the first layer; set it to separate"),
        ((pooler.kind == "mask") != template.masked, "pooler.kind",
         "'mask' and a template.text with {mask} require each other; give both or neither"),
        (templated and not template.masked and pooler.kind != "last", "pooler.kind",
         "a template.text without {mask} is read at the last token; set it to last"),
        (pooler.kind_in_loss is not None and pooler.kind in ("mask", "cnn"), "pooler.kind_in_loss",
         f"the loss must use {pooler.kind!r} too; set it to null"),
        (augment.attention_dropout is not None and not augment.dropout, "augment.attention_dropout",
         "has no effect without augment.dropout; set that to true"),
        (pooler.projector == "batch_norm" and pooler.mlp == "always", "pooler.mlp",
         "the 'batch_norm' projector is for the loss only; set it to train_only"),
        (templated and prompt.kind == "input", "prompt.kind",
         "an 'input' prompt cannot be combined with a template; choose one"),
        (pooler.mlp == "train_only" and "matryoshka" in widths, "objective.matryoshka.widths",
         "the loss sees the projector's output; set pooler.mlp to none or always"),
    ]  # fmt: skip


def _impossible_losses(settings: Settings) -> list[Refusal]:
    objective = settings.objective.over(settings.data.more_terms)
    terms, train = _terms(settings, objective), settings.train
    replaced, group = objective.replaced_tokens, objective.contrastive_tension.group
    wrapped = settings.template.text is not None or settings.prompt.kind == "input"
    detects = "replaced_tokens" in terms
    return [
        (train.early_stop is not None and terms and not objective.comparing, "train.early_stop",
         f"objective.{objective.first} compares no sentences, so the dev score cannot stop this training; set it to "
         "null"),
        (objective.nt_xent.queue > 0 and (objective.nt_xent.two_views or "nt_xent" not in terms),
         "objective.nt_xent.queue", "needs nt_xent without two_views; set queue: 0"),
        ("mutual_information" in terms and settings.pooler.kind != "cnn", "objective.mutual_information.weight",
         "needs pooler.kind: cnn"),
        ("contrastive_tension" in terms and train.batch_size % group, "train.batch_size",
         f"{train.batch_size} is not a multiple of {group}, the rows of a group of objective.contrastive_tension"),
        ("contrastive_tension" in terms and train.distinct_batches, "train.distinct_batches",
         "objective.contrastive_tension fills its groups from whole batches, and these are uneven; set it to false"),
        (detects and train.parameters != "prompts" and replaced.discriminator != "copy",
         "objective.replaced_tokens.discriminator",
         f"train.parameters: {train.parameters} changes the backbone; set it to copy"),
        (detects and wrapped, "objective.replaced_tokens.weight",
         "cannot be combined with a template or an 'input' prompt; set it to 0"),
    ]  # fmt: skip


def impossible_rows(settings: Settings) -> Iterator[str]:
    """Yield what cannot be trained on rows of ``data.view`` and of the further sources, as ``key: problem and fix``."""
    data, mine, nt_xent = settings.data, settings.mine, settings.objective.nt_xent
    terms, view = _terms(settings, settings.objective), mine.view(data.rows)
    views = [view, *(data.of(source).rows for source in data.more)]
    second, several = settings.template.second is not None, "nt_xent" in terms and nt_xent.two_views
    yield from _told([
        (mine.neighbours > 0 and data.rows != "sentences", "mine.neighbours",
         f"pairs are made of sentences, but data.view is {data.rows!r}; set it to 0 or data.view: sentences"),
        (second and view != "sentences", "template.second",
         f"two templates need data.view 'sentences', found {view!r}; remove it"),
        *((view not in term.views or (term.labels and data.view != "categories"), f"objective.{name}.weight",
           f"needs {term.rows}, but data.view is {data.view!r}; set the weight to 0 (-s objective.{name}.weight=0) or "
           f"data.view: {'categories' if term.labels else ' or '.join(term.views)}")
          for name, term in terms.items()),
        ("nt_xent" in terms and nt_xent.hard_negative_weight != 0 and "triplets" not in views,
         "objective.nt_xent.hard_negative_weight", f"data.view {view!r} has no hard negatives; set it to 0"),
        (several and view == "triplets", "objective.nt_xent.two_views",
         "does not support hard negatives; use data.view pairs or sentences"),
    ])  # fmt: skip
    for source, held in zip(data.more, views[1:], strict=True):
        own, key = _terms(settings, settings.objective.of_further(source.terms)), f"data.more.{source.name}"
        yield from _told([
            (settings.train.parameters != "none" and not own, f"{key}.terms",
             "every term has weight 0; give one a weight above 0, or remove the source"),
            *((held not in term.views, key,
               f"holds {held}, but objective.{name} needs {term.rows}; set its terms: {{{name}: 0}}, or view: "
               f"{' or '.join(term.views)}") for name, term in own.items()),
            ("nt_xent" in own and nt_xent.two_views and held == "triplets", key,
             "objective.nt_xent.two_views does not support hard negatives; use view pairs or sentences"),
            (second and held != "sentences", key,
             f"holds {held}, but template.second needs sentences; remove one of the two"),
        ])  # fmt: skip


def _told(rows: Iterable[Refusal]) -> Iterator[str]:
    return (f"{key}: {words}" for when, key, words in rows if when)


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
        return yaml.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise CseError(f"{where}:{line}: not valid YAML: {error.problem}") from None
    except Exception as error:  # constructors raise anything on invalid values
        raise CseError(f"{where}: not valid YAML: {_shortened(str(error).splitlines()[0])}") from None


def check_settings(tree: Mapping[str, Any], where: str, *, any_view: bool = False) -> Settings:
    """Return a plain tree as ``Settings``; raise a one-line ``CseError`` naming ``where`` and the key."""
    try:
        return Settings.model_validate(tree, context={ANY_VIEW: any_view})
    except ValidationError as error:
        first, *others = error.errors()
        more = f" (and {len(others)} more)" if others else ""
        raise CseError(f"{where}: {_one_line(dict(first))}{more}") from None


def settings_with(settings: Settings, values: Mapping[str, Any], *, called: str = "") -> Settings:
    """Return settings with some values changed.

    Args:
        called: what an error calls them; empty: by all their values.
    """
    tree = settings.model_dump(mode="json")
    for key, value in values.items():
        set_key(tree, key, value)
    return check_settings(tree, where=called or ", ".join(f"{key} {value}" for key, value in values.items()))


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
    try:
        found = repr(problem["input"])
    except ValueError:  # Python writes no number of thousands of digits
        found = "a number of thousands of digits"
    return f"{key}: {message[0].lower()}{message[1:]}, found {_shortened(found)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
