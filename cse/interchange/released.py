"""Import a checkpoint that the authors of a paper released, in their own file layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from cse.artifact import sha256
from cse.choices import FirstLayer, ProjectorKind, ReadOut
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
    MASK_ORG_MLP: ReadOut("mask", mlp="always", denoise="always"),
    MASK_USE_POOLER: ReadOut("mask", mlp="always", denoise="always"),
}


@dataclass(frozen=True)
class Layout:
    """A released code base.

    Attributes:
        name: value of ``--as``.
        frozen: whether the language model was frozen and a prefix trained; its file then holds both.
        training_only: how names of tensors begin that inference does not need.
        hint: what decides between the poolers, for messages.
        default: the pooler, where only one is right.
        first_layer: the first layer of ``avg_first_last`` in this code.
        bare: whether its authors also released models with bare names, ``pooler`` standing for the projector.
        templates: template by family; empty: it has none.
    """

    name: str
    frozen: bool
    poolers: tuple[str, ...]
    training_only: tuple[str, ...]
    hint: str
    default: str | None = None
    first_layer: FirstLayer = "embeddings"
    bare: bool = True
    templates: tuple[tuple[str, str], ...] = ()


_TRAINED_HOW = f"{CLS} for supervised models, {RAW_CLS} for unsupervised ones"
LAYOUTS = {
    layout.name: layout
    for layout in (
        # a mean of theirs counts the prefix's columns too and fails, so there is none to import
        Layout("promcse", True, (CLS, RAW_CLS), ("lm_head.",), _TRAINED_HOW, bare=False),
        Layout("dcpcse", True, (CLS, RAW_CLS), ("lm_head.",), _TRAINED_HOW, bare=False),
        Layout("simcse", False, (CLS, RAW_CLS, *AVERAGES), ("lm_head.",), _TRAINED_HOW, first_layer="block1"),
        Layout(
            "diffcse",
            False,
            (RAW_CLS, CLS, *AVERAGES),
            ("generator.", "discriminator.", "aux_bert.", "aux_", "electra_head.", "lm_head."),
            "its models are unsupervised",
            default=RAW_CLS,
        ),
        Layout(
            "promptbert",
            False,
            (MASK, MASK_ORG_MLP, MASK_USE_POOLER),
            (),
            f"{MASK} for unsupervised models, {MASK_ORG_MLP} for the supervised BERT, {MASK_USE_POOLER} for the "
            "supervised RoBERTa",
            templates=(
                ("bert", 'This sentence of "{sentence}" means {mask} .'),
                ("roberta", "This sentence : ' {sentence} ' means {mask}."),
            ),
        ),
    )
}
_FAMILIES = {"bert": "bert", "roberta": "roberta", "xlm-roberta": "roberta", "camembert": "roberta"}  # by model_type
_PREFIX, _PROJECTOR, _POOLER = "prefix_encoder.", "mlp.", "pooler."
_POSITIONS = "embeddings.position_ids"
_TABLE = "embedding.weight"
_TRANSFORM = {"dense": "0", "LayerNorm": "2"}  # PromptBERT's transform, here a sequence
_ROBERTA_DENOISING = (
    "note: for RoBERTa the released code numbers the positions of its template without a sentence from 0, those with "
    "one from 2; here both start at 2, so vectors differ from that code's"
)


def import_released(
    source: Path, kind: str, backbone: Backbone, *, pooler: str | None, template: str | None
) -> Imported:
    """Read a released checkpoint of a kind in ``LAYOUTS``, see ``import_model``."""
    layout = LAYOUTS[kind]
    chosen, read_out = _check_pooler(layout, pooler)
    family = _family(layout, backbone)
    templates: list[Template] = []
    if layout.templates:
        text = template or dict(layout.templates)[family]
        with in_terms_of("--template:", "template.text:"):
            templates = [make_template(text, backbone, trained=False, end_with_period=True)]
    path = find_file(source, MODEL_FILES)
    found = _sort(read_tensors(path), layout, family, path)
    check_beside(path.parent, backbone)
    lines = [_read_model(found, layout, backbone, path)]
    prompt = prompt_of(_table(found.prefix, backbone, path), _TABLE, backbone, path, _PREFIX) if layout.frozen else None
    projector = _projector(found, read_out, chosen, path)
    with in_terms_of("--template:", "template.text:"):
        encoder = SentenceEncoder(
            backbone,
            prompt,
            replace(read_out, projector=projector, first_layer=layout.first_layer),
            templates=templates,
            trained="prompts" if layout.frozen else "full",
        )
    if encoder.mlp is not None:
        weights = dict(encoder.mlp.named_parameters())
        if projector == "mlm_transform":
            theirs = {ours: name for name, ours in _TRANSFORM.items()}
            weights = {f"{theirs[name[0]]}{name[1:]}": weight for name, weight in weights.items()}
        fill(weights, found.projector, path, backbone.files.name, found.projector_said)
    if read_out.denoise == "always" and family == "roberta":
        lines.append(_ROBERTA_DENOISING)
    origin = {"layout": layout.name, "pooler": chosen, "file": path.name, "sha256": sha256(path)}
    facts = {"imported": origin | {"left_out": dict(sorted(found.left_out.items()))}}
    return Imported(encoder, facts, [*lines, *_told(encoder, found)])


def _check_pooler(layout: Layout, pooler: str | None) -> tuple[str, ReadOut]:
    """Return the pooler and what it means."""
    chosen = pooler or layout.default
    if chosen is None:
        raise CseError(f"--pooler: no file of {layout.name} says how an embedding is read; give {layout.hint}")
    if chosen not in layout.poolers:
        known = ", ".join(layout.poolers)
        raise CseError(f"--pooler {chosen}: not one of {known} of {layout.name}{nearest(chosen, layout.poolers)}")
    return chosen, POOLERS[chosen]


def _family(layout: Layout, backbone: Backbone) -> str:
    found = str(backbone.model.config.model_type)
    if found not in _FAMILIES:
        name = backbone.files.name
        raise CseError(f"--backbone: {name} is a {found!r} model; {layout.name} models are BERT or RoBERTa")
    return _FAMILIES[found]


# ---- what each tensor of a file is ----------------------------------------------------------------------------------


@dataclass
class _Sorted:
    """The tensors of a file, each part under the names inside it.

    Attributes:
        outer: what stands before the language model's names: ``bert.``, ``roberta.`` or nothing.
        projector_said: the same for the projector's: ``mlp.``, or ``pooler.`` beside bare names.
        prefix: ``embedding.weight``, and ``trans.*`` where it was trained through a network.
        left_out: how many are not needed, by the beginning of their names.
    """

    outer: str
    projector_said: str
    model: dict[str, torch.Tensor] = field(default_factory=dict)
    prefix: dict[str, torch.Tensor] = field(default_factory=dict)
    projector: dict[str, torch.Tensor] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)


def _sort(tensors: Mapping[str, torch.Tensor], layout: Layout, family: str, path: Path) -> _Sorted:
    """Tell what each tensor is: language model, prefix, projector, or for training only; none is dropped in silence."""
    outer = _outer(tensors, layout, f"{family}.", path)
    bare = not outer and not any(name.startswith(_PROJECTOR) for name in tensors)
    found = _Sorted(outer, _POOLER if bare else _PROJECTOR)
    for name, tensor in tensors.items():
        inner = name.removeprefix(outer) if name.startswith(outer) else ""
        if inner == _POSITIONS:  # 0, 1, 2, ...
            found.left_out[name] += 1
        elif outer and inner.startswith(_POOLER):
            found.left_out[f"{outer}{_POOLER}*"] += 1
        elif inner.startswith(("embeddings.", "encoder.")):
            found.model[inner] = tensor
        elif layout.frozen and name.startswith(_PREFIX):
            found.prefix[name.removeprefix(_PREFIX)] = tensor
        elif name.startswith(found.projector_said):
            found.projector[name.removeprefix(found.projector_said)] = tensor
        elif start := next((start for start in layout.training_only if name.startswith(start)), None):
            found.left_out[f"{start}*"] += 1
        else:
            raise CseError(
                f"{path}: {name} has no place in a {layout.name} model, and nothing is dropped in silence; is it a "
                "file of another code (--as)?"
            )
    return found


def _outer(tensors: Mapping[str, torch.Tensor], layout: Layout, outer: str, path: Path) -> str:
    """Return what stands before the language model's names."""
    for start in dict.fromkeys((outer, "bert.", "roberta.")):
        if any(name.startswith(start) for name in tensors):
            if start == outer:
                return outer
            raise CseError(
                f"{path}: its names begin with {start!r}, not with {outer!r} as the backbone's; name the backbone that "
                "it was trained on"
            )
    if layout.bare and any(name.startswith("encoder.") for name in tensors):
        return ""
    raise CseError(
        f"{path}: no name begins with {outer!r}, so it holds no language model as {layout.name} saves it; found "
        f"{', '.join(sorted(tensors)[:2])}"
    )


def _read_model(found: _Sorted, layout: Layout, backbone: Backbone, path: Path) -> str:
    """Compare the language model with a frozen backbone, or copy it over one that was fine-tuned; return what to tell.

    A frozen one must be equal bit by bit in the file's precision.
    """
    wanted, name = dict(backbone.model.named_parameters()), backbone.files.name
    if not layout.frozen:
        changed = fill(wanted, found.model, path, name, found.outer)
        if changed == 0:
            raise CseError(f"{path}: its language model is {name} itself, so nothing was trained; use that")
        return f"language model: {len(found.model)} tensors, {changed} of them fine-tuned"
    check_shapes(found.model, wanted, path, name, found.outer)
    for key, tensor in found.model.items():
        own = wanted[key].detach().to(tensor.dtype)
        if not torch.equal(own, tensor):
            off = (own.double() - tensor.double()).abs().max().item()
            raise CseError(
                f"{path}: {found.outer}{key} differs from that of {name} by up to {off:.1e}; its prompts were trained "
                "on another model, name the backbone that it was trained on"
            )
    return f"language model: {len(found.model)} tensors, equal to those of {name}"


def _table(prefix: Mapping[str, torch.Tensor], backbone: Backbone, path: Path) -> Mapping[str, torch.Tensor]:
    """Return a prefix encoder's tensors with the table ``(P, 2 * layers * H * K)``, multiplied out of its network.

    With ``trans`` it is ``tanh(E W0^T + b0) W2^T + b2``, computed in float64; ``E`` is ``(P, D)``.
    """
    if _TABLE not in prefix or not any(name.startswith("trans.") for name in prefix):
        return prefix
    length, hidden = (
        len(prefix[name]) if name in prefix and prefix[name].dim() else 0 for name in (_TABLE, "trans.0.bias")
    )
    columns = 2 * backbone.layers * backbone.heads * backbone.head_size
    shapes = {
        _TABLE: (length, backbone.hidden_size),
        "trans.0.weight": (hidden, backbone.hidden_size),
        "trans.0.bias": (hidden,),
        "trans.2.weight": (columns, hidden),
        "trans.2.bias": (columns,),
    }
    wanted = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    check_shapes(prefix, wanted, path, f"a prefix on {backbone.files.name}", _PREFIX)
    part = {name: tensor.double() for name, tensor in prefix.items()}
    inner = torch.tanh(part[_TABLE] @ part["trans.0.weight"].T + part["trans.0.bias"])
    return {_TABLE: (inner @ part["trans.2.weight"].T + part["trans.2.bias"]).float()}


def _projector(found: _Sorted, read_out: ReadOut, pooler: str, path: Path) -> ProjectorKind:
    """Return the kind of the projector in a file; the embedding needs it, or it is left out."""
    names = {name.rpartition(".")[0] for name in found.projector}
    batch_norm = bool(names) and all(name.startswith("net.") for name in names)
    if not batch_norm and (odd := sorted(names - _TRANSFORM.keys())):
        raise CseError(f"{path}: {found.projector_said}{odd[0]} has no place in a projector of the released codes")
    if read_out.mlp == "none":
        if names:
            found.left_out[f"{found.projector_said}*"] += len(found.projector)
        return "tanh"  # of no use
    said = f"--pooler {pooler}: {path} holds"
    if not names:
        raise CseError(f"{said} no projector (mlp.dense.weight), and this pooler needs it; is the model unsupervised?")
    if batch_norm:
        raise CseError(
            f"{said} a projector that normalises over a batch ({found.projector_said}net.1), which serves training "
            "only; give cls_before_pooler"
        )
    transform = names != {"dense"}
    if transform != (pooler == MASK_ORG_MLP):
        has = "a transform" if transform else "a layer with tanh"
        raise CseError(f"{said} {has} as its projector, which this pooler does not use; choose another --pooler")
    return "mlm_transform" if transform else "tanh"


def _told(encoder: SentenceEncoder, found: _Sorted) -> list[str]:
    lines = []
    if encoder.prompt is not None:
        through = ", multiplied out of the network it was trained through" if len(found.prefix) > 1 else ""
        lines.append(f"prefix: {encoder.prompt.length} keys and values in each layer{through}")
    lines.append(f"projector: {'a part of every embedding' if encoder.mlp is not None else 'not used at inference'}")
    if encoder.templates:
        lines.append(f"template: {encoder.templates[0].text}")
    if found.left_out:
        total = found.left_out.total()
        named = ", ".join(f"{name} ({count})" for name, count in sorted(found.left_out.items()))
        lines.append(f"left out {total} tensors that inference does not need: {named}")
    return lines
