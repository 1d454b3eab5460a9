"""The model card that travels with a pushed model: what it is, its measures, the licence of its backbone.

``card.md.j2`` beside this file has its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from huggingface_hub import CardData, EvalResult, ModelCard, ModelCardData
from huggingface_hub import errors as hub_errors

from cse.artifact import Kind
from cse.errors import one_line
from cse.evaluation.dev_facts import START, dev_of
from cse.interchange.hub import is_offline
from cse.interchange.model_folder import ModelFolder
from cse.model.checkpoint import training_notes
from cse.model.declared import CARD

_TEMPLATE = Path(__file__).with_name("card.md.j2")
_LIBRARIES = {
    Kind.SENTENCE_TRANSFORMERS: "sentence-transformers", Kind.PEFT: "peft", Kind.TRANSFORMERS_JS: "transformers.js",
}  # fmt: skip
_TASKS = {"spearman": "sentence-similarity", "accuracy": "text-classification"}  # of the hub, by metric
# the metric in a label; without one it is Spearman
_METRIC = re.compile(r"dev (?P<dev>\w\S*)|(?P<own>(?:recall@|alignment|uniformity).*)|.*\((?P<of>[^()]+)\)")
# a data set of the hub in what a model was trained on: ``owner/name/file, 1,000 pairs + ...``
_DATASET = re.compile(r"(?:^| \+ )([\w.-]+/[\w.-]+)/")
_BEFORE = " before training"


def make_card(model: ModelFolder, repo: str, measures: Measures, about: CardData) -> str:
    """Return the text of ``README.md``: what the model is, how to use it, data, settings, measures, limits.

    Args:
        about: what the card of the backbone says, see ``card_of``.
    """
    facts, title = model.about.get("facts") or {}, repo.rpartition("/")[2]
    name = one_line(str(model.backbone.get("name") or ""))
    licence = about.get("license_name") or about.get("license")
    library = _LIBRARIES.get(model.kind, "cse")
    results = [_result(label, value) for label, value in measures.model.items() if not label.endswith(_BEFORE)]
    data = ModelCardData(
        base_model=name if name and not name.startswith((".", "/")) else None,
        license=str(licence).lower() if licence else None,
        language=about.get("language"),
        datasets=sorted({*_DATASET.findall(str(facts.get("trained_on")))}) or None,
        library_name=library,
        pipeline_tag="sentence-similarity",
        tags=["sentence-similarity", "feature-extraction", "cse"],
        model_name=title if results else None,
        eval_results=results or None,
    )
    card = ModelCard.from_template(
        data,
        str(_TEMPLATE),
        title=title,
        repo=repo,
        model=model,
        manifest=model.about,
        name=name,
        library=library,
        code=any(file.endswith(".py") for file in model.files),
        domain=next((PurePath(file).stem for file in model.files if file.startswith("domains/")), "NAME"),
        facts=facts,
        settings=list(_flat(facts.get("settings") or {})),
        measures=measures,
        notes=training_notes(model.folder),
        licence=licence,
        one_line=lambda value: one_line(str(value)),
    )
    return str(card)


def _result(label: str, value: float) -> EvalResult:
    """Return a measure as the hub lists it."""
    found = _METRIC.fullmatch(label)
    metric = (found[found.lastgroup or 0] if found else "spearman").lower()
    return EvalResult(
        task_type=_TASKS.get(metric, "feature-extraction"),
        dataset_type=re.sub(r"\W+", "-", label.lower()).strip("-"),
        dataset_name=one_line(label),
        metric_type=metric,
        metric_value=round(value, 2),
    )


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            text = one_line(json.dumps(value, ensure_ascii=False))
            yield f"{above}{name}", text.replace("|", "\\|").replace("`", "'")


def card_of(name: str) -> CardData:
    """Return what the card of a backbone (folder or hub id) states; nothing where nothing readable does."""
    place = Path(name)
    if name and not place.is_file():
        try:
            return ModelCard.load(place / CARD if place.is_dir() else name, ignore_metadata_errors=True).data
        except (hub_errors.HFValidationError, OSError, ValueError):
            pass  # no card, not on the hub, offline, or unreadable
        except Exception as error:
            if not is_offline(error):
                raise
    return CardData()


_BARE = "backbone"  # name of the bare backbone in an evaluation


class Measures(NamedTuple):
    """Measures by name, of the model and of its bare backbone."""

    model: dict[str, float]
    backbone: dict[str, float]


def find_measures(model: ModelFolder) -> Measures:
    """Return what a model's manifest says of its quality."""
    facts = model.about.get("facts") or {}
    scores = [(dev_of(facts), ""), (dev_of(facts, START), _BEFORE)]
    found = {f"{score.label}{when}": score.value for score, when in scores if score is not None}
    tables = {
        name: {label: float(value) for label, value in scores.items() if value is not None}
        for name, scores in (model.about.get("evaluation") or {}).items()
    }
    own = next((scores for name, scores in tables.items() if name != _BARE), {})
    return Measures(found | own, tables.get(_BARE, {}))
