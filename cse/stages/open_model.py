"""Open any model a user names: checkpoint, ONNX bundle or bare backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.errors import CseError
from cse.model.checkpoint import training_notes
from cse.model.declared import check_model
from cse.model.device import choose_device
from cse.model.sentence_encoder import SentenceEncoder, load_bare, load_bare_backbone
from cse.runtime.bank import Bank, meaning_of
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.onnx_encoder import OnnxEncoder, open_onnx
from cse.settings.model import BackboneSettings

if TYPE_CHECKING:
    from cse.evaluation.measures import TextEncoder


@dataclass(frozen=True)
class BackboneOf:
    """The bare backbone of a model, used as the model uses it: revision, length and task texts.

    Attributes:
        model: a checkpoint, whose weights it must have; or what its settings say of it.
    """

    model: Path | BackboneSettings


def bare_of(backbone: BackboneSettings) -> SentenceEncoder:
    """Load what a model of these settings is compared with: its backbone of that revision, length and task texts."""
    return load_bare(backbone.name, backbone.revision, backbone.max_length, backbone.texts)


def open_model(
    model: str | BackboneOf,
    *,
    device: str = "auto",
    banks: dict[Path, OnnxEncoder] | None = None,
    kept: KeptVectors | None = None,
) -> TextEncoder:
    """Open a checkpoint or bundle folder, a bank's domain (``BANK:NAME``), or a backbone by folder or hub id.

    Args:
        device: ``auto``, ``cpu``, ``cuda`` or ``openvino``; for a bundle, the execution provider.
        banks: banks that are open already, by folder, all on this device; a bank that is opened now is added.
        kept: has the vectors of the bare backbone.
    """
    if isinstance(model, BackboneOf):
        of = model.model
        bare = bare_of(of) if isinstance(of, BackboneSettings) else load_bare_backbone(of)
        bare.kept = kept
        return bare.to(choose_device(device))
    found = check_model(model)
    onnx = open_onnx(found, device=device, banks=banks)
    if onnx is not None:
        return onnx
    notes = training_notes(found.folder)
    if notes:
        click.echo(f"{found.folder}: {notes}", err=True)
    encoder = SentenceEncoder.load(model)
    encoder.kept = kept
    return encoder.to(choose_device(device))


def each_domain(models: Mapping[str, str]) -> dict[str, str]:
    """Return models by printed name, with a bank replaced by its usable domains: ``NAME:DOMAIN``."""
    each: dict[str, str] = {}
    for name, model in models.items():
        found = {name: model}
        if meaning_of(model).whole_bank:
            domains = Bank(model).domains()
            if not domains.usable:
                raise CseError(f"{model}: no usable domain in the bank; `cse bank add` adds one")
            for reason in domains.refused.values():
                click.echo(f"warning: left out: {reason}", err=True)
            found = {f"{name}:{domain}": f"{model}:{domain}" for domain in domains.usable}
        if twice := found.keys() & each.keys():
            raise CseError(f"{min(twice)}: given twice; write NAME=MODEL with a different name for each")
        each |= found
    return each
