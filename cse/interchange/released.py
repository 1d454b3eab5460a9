"""Import a checkpoint that the authors of a paper released, in their own file layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cse.artifact import sha256
from cse.choices import FirstLayer, ReadOut
from cse.errors import CseError, in_terms_of, nearest
from cse.interchange.foreign import (
    MODEL_FILES,
    Imported,
    check_beside,
    check_shapes,
    fill,
    find_file,
    prompt_of,
    read_tensors,
)
from cse.model.backbone import Backbone
from cse.model.declared import reading
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.template import Template, make_template

CLS, RAW_CLS = "cls", "cls_before_pooler"
AVERAGES = ("avg", "avg_top2", "avg_first_last")
MASK, MASK_ORG_MLP, MASK_USE_POOLER = "mask", "mask_delta_org_mlp", "mask_delta_use_pooler"
POOLERS = {  # of the released scripts
    CLS: ReadOut("cls", mlp="always"),
    RAW_CLS: ReadOut("cls"),
    "avg": ReadOut("mean"),
    "avg_top2": ReadOut("mean_top2"),
    "avg_first_last": ReadOut("mean_first_last"),
    MASK: ReadOut("mask"),
    MASK_ORG_MLP: ReadOut("mask", mlp="always", projector="mlm_transform", denoise="always"),
    MASK_USE_POOLER: ReadOut("mask", mlp="always", denoise="always"),
}


@dataclass(frozen=True)
class Layout:
    """A released code base.

    Attributes:
        frozen: whether the language model was frozen and a prefix trained; its file then holds both, and its names are
            never bare. Other authors also released models with bare names, ``pooler`` standing for the projector.
        hint: what decides between the poolers, for messages.
        training_only: how names of tensors begin that inference does not need.
        default: the pooler, where only one is right.
        first_layer: the first layer of ``avg_first_last`` in this code.
        templates: template by family; empty: it has none.
    """

    frozen: bool
    poolers: tuple[str, ...]
    hint: str
    training_only: tuple[str, ...] = ("lm_head.",)
    default: str | None = None
    first_layer: FirstLayer = "embeddings"
    templates: Mapping[str, str] = field(default_factory=dict)


_TRAINED_HOW = f"{CLS} for supervised models, {RAW_CLS} for unsupervised ones"
# a mean of theirs counts the prefix's columns too and fails, so there is none to import
_PREFIXED = Layout(True, (CLS, RAW_CLS), _TRAINED_HOW)
LAYOUTS = {
    "promcse": _PREFIXED,
    "dcpcse": _PREFIXED,
    "simcse": Layout(False, (CLS, RAW_CLS, *AVERAGES), _TRAINED_HOW, first_layer="block1"),
    "diffcse": Layout(
        False,
        (RAW_CLS, CLS, *AVERAGES),
        "its models are unsupervised",
        ("generator.", "discriminator.", "aux_bert.", "aux_", "electra_head.", "lm_head."),
        default=RAW_CLS,
    ),
    "promptbert": Layout(
        False,
        (MASK, MASK_ORG_MLP, MASK_USE_POOLER),
        f"{MASK} for unsupervised models, {MASK_ORG_MLP} for the supervised BERT, {MASK_USE_POOLER} for the "
        "supervised RoBERTa",
        training_only=(),
        templates={
            "bert": 'This sentence of "{sentence}" means {mask} .',
            "roberta": "This sentence : ' {sentence} ' means {mask}.",
        },
    ),
}
_FAMILIES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta"}  # by model_type
_PREFIX, _PROJECTOR, _POOLER = "prefix_encoder.", "mlp.", "pooler."
_TABLE = f"{_PREFIX}embedding.weight"
_NETWORK = [f"{_PREFIX}trans.{part}" for part in ("0.weight", "0.bias", "2.weight", "2.bias")]
_PROJECTORS = {  # by our names, None: none; the layers of theirs, and what a message calls it
    None: ((), "no projector (mlp.dense.weight)"),
    "tanh": (("dense",), "a layer with tanh as its projector"),
    "mlm_transform": (("LayerNorm", "dense"), "a transform as its projector"),
    "batch_norm": (("net",), "a projector that normalises over a batch, which serves training only"),
}
_TRANSFORM = {"0": "dense", "2": "LayerNorm"}  # PromptBERT's transform is a sequence here
_ROBERTA_DENOISING = (
    "note: for RoBERTa the released code numbers the positions of its template without a sentence from 0, those with "
    "one from 2; here both start at 2, so vectors differ from that code's"
)


def import_released(
    source: Path, kind: str, backbone: Backbone, *, pooler: str | None, template: str | None
) -> Imported:
    """Read a released checkpoint of a kind in ``LAYOUTS``, see ``import_model``."""
    layout, name, model_type = LAYOUTS[kind], backbone.files.name, str(backbone.model.config.model_type)
    chosen = _chosen(kind, pooler)
    if model_type not in _FAMILIES:
        raise CseError(f"--backbone: {name} is a {model_type!r} model; {kind} models are BERT or RoBERTa")
    read_out, family = replace(POOLERS[chosen], first_layer=layout.first_layer), _FAMILIES[model_type]
    path = find_file(source, MODEL_FILES)
    tensors = read_tensors(path)
    outer = _outer(tensors, f"{family}.", layout, path)
    at = _PROJECTOR if outer or any(key.startswith(_PROJECTOR) for key in tensors) else _POOLER
    counts = {(positions := f"{outer}embeddings.position_ids"): len(_take(tensors, positions))}  # 0, 1, 2, ...
    model = _take(tensors, f"{outer}embeddings.", f"{outer}encoder.")
    prefix = _take(tensors, _PREFIX) if layout.frozen else {}
    projector = _take(tensors, at)
    if read_out.mlp == "none":
        counts[f"{at}*"] = len(projector)
    for start in (*([f"{outer}{_POOLER}"] if outer else []), *layout.training_only):
        counts[f"{start}*"] = len(_take(tensors, start))
    for key in tensors:
        raise CseError(
            f"{path}: {key} has no place in a {kind} model, and nothing is dropped in silence; is it a file of another "
            "code (--as)?"
        )
    left_out = {start: count for start, count in sorted(counts.items()) if count}
    check_beside(path.parent, backbone)
    wanted = {f"{outer}{key}": weight for key, weight in backbone.model.named_parameters()}
    lines = [_read_model(model, wanted, layout, path, name)]
    prompt = prompt_of(_table(prefix, path), _TABLE, backbone, path) if layout.frozen else None
    _check_projector(projector, at, read_out, f"--pooler {chosen}: {path}")
    templates: list[Template] = []
    with in_terms_of("--template:", "template.text:"):
        if layout.templates:
            text = template or layout.templates[family]
            templates = [make_template(text, backbone, trained=False, end_with_period=True)]
        trained = "prompts" if layout.frozen else "full"
        encoder = SentenceEncoder(backbone, prompt, read_out, templates=templates, trained=trained)
    if encoder.mlp is not None:
        parts = dict(encoder.mlp.named_parameters())
        if read_out.projector == "mlm_transform":
            parts = {f"{_TRANSFORM[part[0]]}{part[1:]}": weight for part, weight in parts.items()}
        fill(projector, {f"{at}{part}": weight for part, weight in parts.items()}, path, name)
    if read_out.denoise == "always" and family == "roberta":
        lines.append(_ROBERTA_DENOISING)
    if prompt is not None:
        through = ", multiplied out of the network it was trained through" if len(prefix) > 1 else ""
        lines.append(f"prefix: {prompt.length} keys and values in each layer{through}")
    lines.append(f"projector: {'a part of every embedding' if encoder.mlp is not None else 'not used at inference'}")
    lines += [f"template: {made.text}" for made in templates]
    if left_out:
        named = ", ".join(f"{start} ({count})" for start, count in left_out.items())
        lines.append(f"left out {sum(left_out.values())} tensors that inference does not need: {named}")
    origin = {"layout": kind, "pooler": chosen, "file": path.name, "sha256": sha256(path), "left_out": left_out}
    return Imported(encoder, {"imported": origin}, lines)


def _chosen(kind: str, pooler: str | None) -> str:
    """Return the pooler."""
    layout = LAYOUTS[kind]
    chosen = pooler or layout.default
    if chosen is None:
        raise CseError(f"--pooler: no file of {kind} says how an embedding is read; give {layout.hint}")
    if chosen not in layout.poolers:
        known = ", ".join(layout.poolers)
        raise CseError(f"--pooler {chosen}: not one of {known} of {kind}{nearest(chosen, layout.poolers)}")
    return chosen


def _outer(names: Iterable[str], outer: str, layout: Layout, path: Path) -> str:
    """Return how the language model's names begin: as the backbone's family calls itself, or with nothing."""
    names = [*names]
    if any(name.startswith(outer) for name in names):
        return outer
    if not layout.frozen and any(name.startswith("encoder.") for name in names):
        return ""
    raise CseError(
        f"{path}: no name begins with {outer!r} as the backbone's, found {', '.join(names[:2])}; name the backbone "
        "that it was trained on, or is it a file of another code (--as)?"
    )


def _take(tensors: dict[str, torch.Tensor], *starts: str) -> dict[str, torch.Tensor]:
    """Take out the tensors whose names begin so."""
    return {name: tensors.pop(name) for name in [*tensors] if name.startswith(starts)}


def _read_model(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor], layout: Layout, path: Path, name: str
) -> str:
    """Compare a frozen language model with the backbone, or load a fine-tuned one into it; return a line to tell."""
    if not layout.frozen:
        changed = fill(found, wanted, path, name)
        if changed == 0:
            raise CseError(f"{path}: its language model is {name} itself, so nothing was trained; use that")
        return f"language model: {len(found)} tensors, {changed} of them fine-tuned"
    check_shapes(found, wanted, path, name)
    for key, tensor in found.items():
        own = wanted[key].detach().to(tensor.dtype)
        if not torch.equal(own, tensor):
            off = (own.double() - tensor.double()).abs().max().item()
            raise CseError(
                f"{path}: {key} differs from that of {name} by up to {off:.1e}; its prompts were trained on another "
                "model, name the backbone that it was trained on"
            )
    return f"language model: {len(found)} tensors, equal to those of {name}"


def _table(prefix: Mapping[str, torch.Tensor], path: Path) -> Mapping[str, torch.Tensor]:
    """Return a prefix encoder's tensors with the table ``(P, 2 * layers * H * K)``, multiplied out of its network.

    With ``trans`` it is ``tanh(E W0^T + b0) W2^T + b2``, computed in float64; ``E`` is ``(P, D)``.
    """
    left = dict(prefix)
    if not any(name.startswith(f"{_PREFIX}trans.") for name in left):
        return left
    with reading(f"{path}: cannot multiply out the network of its prefix", (LookupError, RuntimeError)):
        table, weight_0, bias_0, weight_2, bias_2 = (left.pop(name).double() for name in (_TABLE, *_NETWORK))
        return left | {_TABLE: (torch.tanh(table @ weight_0.T + bias_0) @ weight_2.T + bias_2).float()}


def _check_projector(projector: Iterable[str], at: str, read_out: ReadOut, where: str) -> None:
    """Refuse a projector that is none of the released codes', or not the one that an embedding needs."""
    parts = sorted({name.removeprefix(at).partition(".")[0] for name in projector})
    kind = next((kind for kind, (known, _) in _PROJECTORS.items() if [*known] == parts), "")
    if kind == "":
        odd = next((part for part in parts if part not in ("dense", "LayerNorm")), parts[0])
        raise CseError(f"{where}: {at}{odd} has no place in a projector of the released codes")
    if read_out.mlp != "none" and kind != read_out.projector:
        has, needs = (_PROJECTORS[one][1] for one in (kind, read_out.projector))
        raise CseError(f"{where} holds {has}; this pooler needs {needs}, choose another --pooler")
