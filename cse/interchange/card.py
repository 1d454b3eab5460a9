"""The model card that travels with a pushed model: what it is, its measures, the licence of its backbone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub import errors as hub_errors

from cse.artifact import read_value
from cse.errors import CseError, in_terms_of, one_line
from cse.evaluation.dev_facts import START, dev_of
from cse.interchange.hub import is_offline
from cse.interchange.model_folder import ADAPTER, ROUTER, ModelFolder
from cse.model.checkpoint import training_notes
from cse.model.declared import CARD, MODULES
from cse.outputs import Kind
from cse.runtime.uses import QUERY

_DEEP = {
    "key_value": "keys and values in every layer",
    "hidden_state": "hidden states in every layer",
    "input": "inputs",
}
_TRAINED = {
    "full": "The whole language model was trained; its weights are in this repository.",
    "biases": "The biases of the language model were trained; its other weights are frozen.",
    "norms": "The norms of the language model were trained; its other weights are frozen.",
    "lora": "The language model is frozen, with trained low-rank updates of its linear layers (LoRA).",
}


def make_card(model: ModelFolder, repo: str, measures: Measures, licence: str | None) -> str:
    """Return the text of ``README.md``: what the model is, how to use it, data, settings, measures, limits.

    Args:
        licence: of the backbone, as its card states it; None: unknown.
    """
    name = model.backbone.get("name")
    of = f"`{one_line(str(name))}`" if name else "its language model"
    parts = [
        f"---\n{_metadata(model, licence)}\n---",
        f"# {repo.rpartition('/')[2]}",
        _what(model),
        f"## Use\n\n```sh\ncse pull {repo} --out model\n```\n\n```python\n{_snippet(model)}\n```",
        f"## From the export\n\n{model.notes}" if model.notes else "",
        f"## Training\n\n{_training(model)}",
        f"## Measures\n\n{_measured(measures)}",
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(model, measures)),
        f"## Licence\n\nThe backbone, {of}: {licence or 'see the backbone'}. The model is derived from it.",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _metadata(model: ModelFolder, licence: str | None) -> str:
    name = str(model.backbone.get("name", ""))
    library = {MODULES: "sentence-transformers", ADAPTER: "peft"}
    known = [library[file] for file in model.files if file in library]
    return ModelCardData(
        base_model=name if name and not name.startswith((".", "/")) else None,
        license=licence.lower() if licence else None,
        library_name=known[0] if known else "cse",
        pipeline_tag="sentence-similarity",
        tags=["sentence-similarity", "feature-extraction", "cse"],
    ).to_yaml()


def _what(model: ModelFolder) -> str:
    manifest, backbone = model.manifest, model.backbone.get("name")
    over = f" over the language model `{one_line(str(backbone))}`" if backbone else ""
    facts = [f"A model of the project `cse` ({model.kind}){over}: sentences in, vectors out."]
    prompt, parameters, pooler = manifest.get("prompt"), manifest.get("parameters"), manifest.get("pooler")
    if prompt:
        facts.append(
            f"Prompts: {prompt.get('length')} vectors, {_DEEP.get(str(prompt.get('kind')), 'of another kind')}."
        )
    if parameters in _TRAINED:
        facts.append(_TRAINED[parameters])
    elif prompt:
        facts.append("The language model is frozen.")
    if trained := (_facts(model).get("parameters") or {}).get("trained"):
        facts.append(f"Trained weights: {trained:,}.")
    if dimension := manifest.get("dimension"):
        if isinstance(pooler, dict):
            pooler = f"{pooler.get('kind')}{', with a projector' if pooler.get('mlp') == 'always' else ''}"
        facts.append(f"Vectors have {dimension} dimensions; pooler: {pooler}.")
    return " ".join(facts)


def _snippet(model: ModelFolder) -> str:
    texts = '["A cat sleeps.", "A dog runs."]'
    if MODULES in model.files:
        kinds = [str(entry.get("type", "")) for entry in json.loads((model.folder / MODULES).read_text("utf-8"))]
        if ROUTER in model.files:
            kinds += json.loads((model.folder / ROUTER).read_text("utf-8"))["types"].values()
        own = "" if all(kind.startswith("sentence_transformers.") for kind in kinds) else ", trust_remote_code=True"
        opened = f'from sentence_transformers import SentenceTransformer\n\nencoder = SentenceTransformer("model"{own})'
        return f"{opened}\nprint(encoder.encode({texts}).shape)"
    if ADAPTER in model.files:
        base = str(model.backbone.get("name", "./"))
        named = "FOLDER OF THE BACKBONE" if base.startswith("./") else base
        return (
            "from peft import PeftModel\nfrom transformers import AutoModel\n\n"
            f'model = PeftModel.from_pretrained(AutoModel.from_pretrained("{named}"), "model").eval()'
        )
    apart = model.kind == Kind.CHECKPOINT and model.backbone.get("words") is None
    moved = apart and str(model.backbone.get("name", "")).startswith("./")
    where = ', backbone="FOLDER OF THE BACKBONE"' if moved else ""
    load = "SentenceEncoder.load" if model.kind == Kind.CHECKPOINT else "OnnxEncoder"
    first = next((PurePath(name).stem for name in model.files if name.startswith("domains/")), "NAME")
    domain = f', domain="{first}"' if model.kind == Kind.BANK else ""
    role = f', role="{QUERY}"' if model.manifest.get("side") == QUERY else ""
    return f'import cse\n\nencoder = cse.{load}("model"{where})\nprint(encoder.encode({texts}{domain}{role}).shape)'


def _training(model: ModelFolder) -> str:
    facts = _facts(model)
    lines = []
    if isinstance(origin := facts.get("imported"), dict):
        file, sha256 = one_line(str(origin.get("file"))), str(origin.get("sha256"))
        lines.append(
            f"Imported from `{file}` (SHA-256 {sha256[:12]}...), layout {origin.get('layout')}, pooler "
            f"{origin.get('pooler')}; it was trained with its authors' code."
        )
    if rows := facts.get("trained_on"):
        lines.append(f"Data: {one_line(str(rows))}.")
    if "steps" in facts:
        lines.append(f"Steps: {facts['steps']}, precision {facts.get('precision', 'unknown')}.")
    if isinstance(settings := facts.get("settings"), dict):
        rows = "\n".join(f"| `{key}` | `{value}` |" for key, value in _flat(settings))
        lines.append(f"<details><summary>Settings</summary>\n\n| key | value |\n|---|---|\n{rows}\n\n</details>")
    return "\n\n".join(lines) or "This folder does not record how it was trained."


def _facts(model: ModelFolder) -> dict[str, Any]:
    """Return the facts of a model's training."""
    if model.kind == Kind.CHECKPOINT:
        return _tables(model.manifest).get("facts", {})
    return _tables(model.manifest.get("metrics")).get("train", {})


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            text = one_line(json.dumps(value, ensure_ascii=False))
            yield f"{above}{name}", text.replace("|", "\\|").replace("`", "'")


def _measured(measures: Measures) -> str:
    if not measures.model:
        return "None recorded with this model."
    bare = measures.backbone
    head = "| measure | this model |" + (" bare backbone |" if bare else "")
    rule = "|---|---:|" + ("---:|" if bare else "")
    rows = [
        f"| {name} | {value} |" + (f" {bare.get(name, '')} |" if bare else "") for name, value in measures.model.items()
    ]
    spread = f" ± is the standard deviation over {measures.spread_over}." if measures.spread_over else ""
    note = f"Spearman correlation and accuracy times 100.{spread or ' One run: no spread was measured.'}"
    return "\n".join([head, rule, *rows, "", note])


def _limits(model: ModelFolder, measures: Measures) -> Iterator[str]:
    if length := model.manifest.get("max_length"):
        yield f"Texts are cut after {length} tokens, special tokens included."
    if model.kind == Kind.CHECKPOINT and model.backbone.get("words") is None:
        backbone = str(model.backbone.get("sha256"))
        yield f"Needs the language model with SHA-256 `{backbone[:16]}...`; any other is refused."
    if notes := training_notes(model.folder):
        yield f"It was {notes}."
    if model.manifest.get("side") == QUERY:
        yield (
            f"Role `{QUERY}` alone takes what was trained. All other texts have the bare backbone's vectors, so an "
            "index of those is searched with it."
        )
    else:
        yield "Its vectors compare with each other only, not with those of another model."
    known = "The measures hold for the tasks named above" if measures.model else "Nothing is known of its quality"
    yield f"{known}; try it on your own texts first."


def licence_of(name: str) -> str | None:
    """Return the licence that the card of a backbone (folder or hub id) states; None where nothing readable does."""
    place = Path(name)
    if not name or place.is_file():
        return None
    try:
        data = ModelCard.load(place / CARD if place.is_dir() else name, ignore_metadata_errors=True).data
    except (hub_errors.HFValidationError, OSError, ValueError):
        return None  # no card, not on the hub, offline, or unreadable
    except Exception as error:
        if not is_offline(error):
            raise
        return None
    stated = data.get("license_name") or data.get("license")
    return str(stated) if stated else None


# ---- measures -------------------------------------------------------------------------------------------------------

_BARE = "backbone"  # name of the bare backbone in data/metrics/evaluation.json


class Measure(NamedTuple):
    """One number, and the standard deviation where repetitions or seeds gave one."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.spread is None else f"{self.value:.2f} ± {self.spread:.2f}"


class Measures(NamedTuple):
    """Measures by name, of the model and of its bare backbone, and what their spread is over."""

    model: dict[str, Measure]
    backbone: dict[str, Measure]
    spread_over: str = ""


def find_measures(model: ModelFolder, files: Sequence[Path]) -> Measures:
    """Return what is known of a model's quality, from its manifest where no files are given.

    Args:
        files: ``record.json`` of evaluations, or ``data/metrics/evaluation.json``; several are taken as seeds of one
            system, and the spread is over them.
    """
    if not files:
        return _recorded(model)
    runs = [_read(path) for path in files]
    if len(runs) == 1:
        drawn = any(measure.spread is not None for measure in runs[0].model.values())
        return runs[0]._replace(spread_over="the drawn samples of the task" if drawn else "")
    over = f"{len(runs)} evaluations"
    return Measures(_joined([run.model for run in runs]), _joined([run.backbone for run in runs]), over)


def _joined(runs: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return mean and standard deviation over runs of the measures that all of them have."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name].value for run in runs] for name in names}
    return {name: Measure(fmean(found), pstdev(found)) for name, found in values.items()}


def _recorded(model: ModelFolder) -> Measures:
    """Return the measures in a model's manifest."""
    facts, tables = _facts(model), _tables(model.manifest.get("metrics")).get("evaluation")
    scores = [(dev_of(facts), ""), (dev_of(facts, START), " before training")]
    found = _numbers({f"{score.label}{when}": score.value for score, when in scores if score is not None})
    scored = _from_table(_tables(tables))
    return Measures(found | scored.model, scored.backbone)


def _read(path: Path) -> Measures:
    give = "give a record.json or data/metrics/evaluation.json"
    with in_terms_of("--metrics "):
        tree = read_value(path, give)
    tables, found = _tables(tree), Measures({}, {})
    if "scores" in tables:
        found = Measures(_from_record(tables["scores"]), {})
    elif isinstance(tree, dict) and tables.keys() == tree.keys():
        found = _from_table(tables)
    if not found.model:
        raise CseError(f"--metrics {path}: holds no measures; {give}")
    return found


def _from_table(tables: Mapping[str, Mapping[str, Any]]) -> Measures:
    """Read ``{model: {measure: number}}``; the bare backbone is one of the models."""
    models = {name: _numbers(scores) for name, scores in tables.items()}
    trained = next((scores for name, scores in models.items() if name != _BARE), {})
    return Measures(trained, models.get(_BARE, {}))


def _from_record(scores: Mapping[str, Any]) -> dict[str, Measure]:
    """Read the scores of a record: Spearman times 100 by task, CxC-STS with its deviation, own tasks, accuracies."""
    found = {name: score.get("all") for name, score in _tables(scores.get("sts")).items()}
    found |= {name: score.get("all") for name, score in _tables(scores).items() if name.startswith("Avg.")}
    cxc = _numbers(scores.get("cxc"))
    drawn = {"CxC-STS": Measure(cxc["mean"].value, cxc["std"].value)} if {"mean", "std"} <= cxc.keys() else {}
    own = {
        f"{name} ({task.get('main')})": _tables(task).get("values", {}).get(str(task.get("main")))
        for name, task in _tables(scores.get("tasks")).items()
    }
    transfer = _tables(_tables(scores.get("transfer")).get("transfer"))
    accuracies = {f"{name} (accuracy)": score.get("accuracy") for name, score in transfer.items()}
    return _numbers(found) | drawn | _numbers(own) | _numbers(accuracies)


def _tables(tree: Any) -> dict[str, dict[str, Any]]:
    """Return the objects in a JSON object by name; none of anything else."""
    return {name: value for name, value in tree.items() if isinstance(value, dict)} if isinstance(tree, dict) else {}


def _numbers(tree: Any) -> dict[str, Measure]:
    """Return the numbers in a JSON object by name; none of anything else."""
    items = tree.items() if isinstance(tree, dict) else ()
    return {name: Measure(float(value)) for name, value in items if type(value) in (int, float)}
