"""The model card that travels with a pushed model, and the licence that the backbone's own card states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub import errors as hub_errors

from cse.errors import one_line
from cse.interchange.hub_errors import is_transport
from cse.interchange.measures import Measures
from cse.interchange.model_folder import ADAPTER, MODULES, ROUTER, ModelFolder
from cse.model.checkpoint import training_notes
from cse.outputs import Kind
from cse.runtime.uses import QUERY

_SEE = "see the backbone"
_DEEP = {
    "key_value": "keys and values in every layer",
    "hidden_state": "hidden states in every layer",
    "input": "inputs",
}
_BESIDE = {
    "biases": "The biases of the language model were trained; its other weights are frozen.",
    "norms": "The norms of the language model were trained; its other weights are frozen.",
    "lora": "The language model is frozen, with trained low-rank updates of its linear layers (LoRA).",
}


def make_card(model: ModelFolder, repo: str, measures: Measures, licence: str | None) -> str:
    """Return the text of ``README.md``: what the model is, how to use it, data, settings, measures, limits.

    Args:
        model: from ``open_folder``, without paths of a machine.
        measures: from ``find_measures``.
        licence: of the backbone, as its card states it; None: unknown.
    """
    parts = [
        f"---\n{_metadata(model, licence)}\n---",
        f"# {repo.rpartition('/')[2]}",
        _what(model),
        f"## Use\n\n{_usage(model, repo)}",
        f"## From the export\n\n{model.notes}" if model.notes else "",
        f"## Training\n\n{_training(model)}",
        f"## Measures\n\n{_measured(measures)}",
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(model, measures)),
        f"## Licence\n\n{_licence(model, licence)}",
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
    backbone = model.backbone.get("name")
    over = f" over the language model `{one_line(str(backbone))}`" if backbone else ""
    sentence = f"A model of the project `cse` ({model.kind}){over}: sentences in, vectors out."
    facts = [sentence]
    trained = (_facts(model).get("parameters") or {}).get("trained")
    prompt, dimension = model.manifest.get("prompt"), model.manifest.get("dimension")
    if isinstance(prompt, dict) and prompt:
        facts.append(
            f"Prompts: {prompt.get('length')} vectors, {_DEEP.get(str(prompt.get('kind')), 'of another kind')}."
        )
    if model.manifest.get("parameters") == "full":
        facts.append("The whole language model was trained; its weights are in this repository.")
    elif model.manifest.get("parameters") in _BESIDE:
        facts.append(_BESIDE[str(model.manifest["parameters"])])
    elif isinstance(prompt, dict) and prompt:
        facts.append("The language model is frozen.")
    if trained:
        facts.append(f"Trained weights: {trained:,}.")
    if dimension:
        facts.append(f"Vectors have {dimension} dimensions; pooler: {_pooler(model)}.")
    return " ".join(facts)


def _pooler(model: ModelFolder) -> str:
    pooler = model.manifest.get("pooler")
    if not isinstance(pooler, dict):
        return str(pooler)
    return f"{pooler.get('kind')}{', with a projector' if pooler.get('mlp') == 'always' else ''}"


def _usage(model: ModelFolder, repo: str) -> str:
    shell = f"```sh\ncse pull {repo} --out model\n```"
    return f"{shell}\n\n```python\n{_snippet(model)}\n```"


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
    if model.kind == Kind.CHECKPOINT:
        return model.manifest.get("facts") or {}
    train = (model.manifest.get("metrics") or {}).get("train")
    return train if isinstance(train, dict) else {}


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield (
                f"{above}{name}",
                one_line(json.dumps(value, ensure_ascii=False)).replace("|", "\\|").replace("`", "'"),
            )


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
    if measures.model:
        yield "The measures hold for the tasks named above; try it on your own texts first."
    else:
        yield "Nothing is known of its quality; try it on your own texts first."


def _licence(model: ModelFolder, licence: str | None) -> str:
    name = model.backbone.get("name")
    of = f"`{one_line(str(name))}`" if name else "its language model"
    return f"The backbone, {of}: {licence or _SEE}. The model is derived from it."


def licence_of(name: str) -> str | None:
    """Return the licence in the metadata of a backbone's ``README.md``; None where nothing readable states one.

    Args:
        name: folder or hub id of the backbone.
    """
    place = Path(name)
    if not name or place.is_file():
        return None
    if place.is_dir():
        return _stated_licence(place / "README.md") if (place / "README.md").is_file() else None
    return _stated_licence(name)


def _stated_licence(where: Path | str) -> str | None:
    try:
        data = ModelCard.load(where, ignore_metadata_errors=True).data
    except (hub_errors.HfHubHTTPError, hub_errors.HFValidationError, OSError, ValueError):
        return None  # no card, not on the hub, offline, or unreadable
    except Exception as error:
        if not is_transport(error):
            raise
        return None
    stated = data.get("license_name") or data.get("license")
    return str(stated) if stated else None
