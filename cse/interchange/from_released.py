"""Import a checkpoint that the authors of a paper released, in their own file layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cse.choices import ProjectorKind, ReadOut
from cse.errors import CseError, in_terms_of, nearest
from cse.interchange.assemble import Imported, build, copy_into
from cse.interchange.layouts import LAYOUTS, MASK_ORG_MLP, POOLERS, Layout
from cse.interchange.prefix_table import read_table
from cse.interchange.same_model import check_beside, check_frozen, check_shapes
from cse.interchange.sorting import OUTER, Sorted, sort_tensors
from cse.interchange.weight_files import MODEL_FILES, find_file, read_tensors
from cse.model.backbone import Backbone
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.template import Template, make_template
from cse.runtime.seal import sha256

_BATCH_NORM = "net."
_TRANSFORM = {"dense": "0", "LayerNorm": "2"}  # PromptBERT's transform, here a sequence
_ROBERTA_DENOISING = (
    "note: for RoBERTa the released code numbers the positions of its template without a sentence from 0, those with "
    "one from 2; here both start at 2, so vectors differ from that code's"
)


def import_released(
    source: Path, kind: str, backbone: Backbone, *, pooler: str | None, template: str | None
) -> Imported:
    """Read a released checkpoint.

    Args:
        source: its folder or weight file.
        kind: a key of ``LAYOUTS``.
        pooler: how the released scripts read an embedding, one of the layout's; None: its default.
        template: words around the sentence; None: the paper's.
    """
    layout = LAYOUTS[kind]
    chosen, read_out = check_pooler(layout, pooler)
    model_type = _model_type(layout, backbone)
    templates = _templates(layout, backbone, template)
    path = find_file(source, MODEL_FILES)
    found = sort_tensors(read_tensors(path), layout, model_type, path)
    check_beside(path.parent, backbone)
    lines = _read_model(found, layout, backbone, path)
    table = read_table(found.prefix, backbone, path) if layout.frozen else None
    read_out = replace(read_out, first_layer=layout.first_layer)
    if read_out.mlp == "always":
        read_out = replace(read_out, projector=_projector_in_use(found, chosen, path))
    with in_terms_of("--template:", "template.text:"):
        encoder = build(
            backbone,
            read_out,
            table=table,
            templates=templates,
            frozen=layout.frozen,
        )
    if read_out.mlp == "always":
        _load_projector(encoder, found, path)
    elif _projector_kind(found, path) is not None:
        found.left_out[f"{found.projector_said}*"] += len(found.projector)
    if read_out.denoise == "always" and OUTER[model_type] == "roberta.":
        lines.append(_ROBERTA_DENOISING)
    return Imported(encoder, _facts(layout, chosen, path, found), [*lines, *_told(encoder, found)])


def _model_type(layout: Layout, backbone: Backbone) -> str:
    found = str(backbone.model.config.model_type)
    if found not in OUTER:
        name = backbone.files.name
        raise CseError(f"--backbone: {name} is a {found!r} model; {layout.name} models are BERT or RoBERTa")
    return found


def check_pooler(layout: Layout, pooler: str | None) -> tuple[str, ReadOut]:
    """Return the pooler and what it means."""
    chosen = pooler or layout.default
    if chosen is None:
        raise CseError(f"--pooler: no file of {layout.name} says how an embedding is read; give {layout.hint}")
    if chosen not in layout.poolers:
        known = ", ".join(layout.poolers)
        raise CseError(f"--pooler {chosen}: not one of {known} of {layout.name}{nearest(chosen, layout.poolers)}")
    return chosen, POOLERS[chosen]


def _templates(layout: Layout, backbone: Backbone, text: str | None) -> tuple[Template, ...]:
    if not layout.templates:
        if text is not None:
            raise CseError(f"--template: {layout.name} models have none; leave it out")
        return ()
    usual = dict(layout.templates)[OUTER[backbone.model.config.model_type].rstrip(".")]
    with in_terms_of("--template:", "template.text:"):
        return (make_template(text or usual, backbone, trained=False, end_with_period=True),)


def _read_model(found: Sorted, layout: Layout, backbone: Backbone, path: Path) -> list[str]:
    """Compare the language model with a frozen backbone, or copy it over one that was fine-tuned."""
    if layout.frozen:
        check_frozen(found.model, backbone, path, found.outer)
        return [f"language model: {len(found.model)} tensors, equal to those of {backbone.files.name}"]
    wanted = dict(backbone.model.named_parameters())
    check_shapes(found.model, wanted, path, backbone.files.name, found.outer)
    changed = sum(not torch.equal(wanted[name], tensor.float()) for name, tensor in found.model.items())
    if changed == 0:
        raise CseError(f"{path}: its language model is {backbone.files.name} itself, so nothing was trained; use that")
    copy_into(wanted, found.model)
    return [f"language model: {len(found.model)} tensors, {changed} of them fine-tuned"]


def _projector_kind(found: Sorted, path: Path) -> ProjectorKind | None:
    names = {name.rpartition(".")[0] for name in found.projector}
    if not names:
        return None
    if all(name.startswith(_BATCH_NORM) for name in found.projector):
        return "batch_norm"
    if names <= {"dense"}:
        return "tanh"
    if names <= set(_TRANSFORM):
        return "mlm_transform"
    odd = sorted(name for name in found.projector if name.rpartition(".")[0] not in _TRANSFORM)[0]
    raise CseError(f"{path}: {found.projector_said}{odd} has no place in a projector of the released codes")


def _projector_in_use(found: Sorted, pooler: str, path: Path) -> ProjectorKind:
    """Return the kind of a projector that is a part of the embedding."""
    projector = _projector_kind(found, path)
    said = f"--pooler {pooler}: {path} holds"
    if projector is None:
        raise CseError(f"{said} no projector (mlp.dense.weight), and this pooler needs it; is the model unsupervised?")
    if projector == "batch_norm":
        raise CseError(
            f"{said} a projector that normalises over a batch ({found.projector_said}net.1), which serves training "
            "only; give cls_before_pooler"
        )
    if (projector == "mlm_transform") != (pooler == MASK_ORG_MLP):
        has = "a transform" if projector == "mlm_transform" else "a layer with tanh"
        raise CseError(f"{said} {has} as its projector, which this pooler does not use; choose another --pooler")
    return projector


def _load_projector(encoder: SentenceEncoder, found: Sorted, path: Path) -> None:
    assert encoder.mlp is not None  # noqa: S101 - built with one
    wanted: dict[str, Any] = dict(encoder.mlp.named_parameters())
    renamed = {name: name for name in wanted}
    if encoder.read_out.projector == "mlm_transform":
        renamed = {f"{old}.{part}": f"{new}.{part}" for old, new in _TRANSFORM.items() for part in ("weight", "bias")}
    by_file = {name: wanted[here] for name, here in renamed.items()}
    check_shapes(found.projector, by_file, path, encoder.backbone.files.name, found.projector_said)
    copy_into(by_file, found.projector)


def _facts(layout: Layout, pooler: str, path: Path, found: Sorted) -> dict[str, Any]:
    origin = {"layout": layout.name, "pooler": pooler, "file": path.name, "sha256": sha256(path)}
    return {"imported": origin | {"left_out": dict(sorted(found.left_out.items()))}}


def _told(encoder: SentenceEncoder, found: Sorted) -> list[str]:
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
