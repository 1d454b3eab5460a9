"""Open any model a user names: checkpoint, ONNX bundle or bare backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cse.errors import CseError, nearest
from cse.model.backbone_files import means_folder
from cse.model.bare import BareBackbone, load_bare_backbone
from cse.model.checkpoint_config import training_notes
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import is_word_file
from cse.runtime.bank import Bank, domain_of, is_bank
from cse.runtime.bundle import MANIFEST
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.opening import open_onnx, refuse_whole_bank
from cse.training.precision import choose_device

if TYPE_CHECKING:
    from cse.evaluation.vectors import TextEncoder


@dataclass(frozen=True)
class BackboneOf:
    """The bare backbone of a model, used as the model uses it: revision, length and task texts.

    Attributes:
        model: a checkpoint, whose weights it must have; or what its settings say of it.
    """

    model: Path | BareBackbone


def open_model(
    model: str | BackboneOf, *, device: str = "auto", banks: dict[Path, OnnxEncoder] | None = None
) -> TextEncoder:
    """Open a checkpoint or bundle folder, a bank's domain (``BANK:NAME``), or a backbone by folder or hub id.

    Args:
        model: path or name given by the user, or the backbone of a model.
        device: ``auto``, ``cpu`` or ``cuda``; for a bundle, the execution provider.
        banks: banks that are open already, by folder, all on this device; a bank that is opened now is added.

    Raises:
        CseError: the path holds no usable model, or the requested GPU is missing.
    """
    if isinstance(model, BackboneOf):
        of = model.model
        return (of.load() if isinstance(of, BareBackbone) else load_bare_backbone(of)).to(choose_device(device))
    check_model(model)
    onnx = open_onnx(model, device=device, banks=banks)
    if onnx is not None:
        return onnx
    folder = Path(model)
    notes = training_notes(folder)
    if notes:
        click.echo(f"{folder}: {notes}", err=True)
    return SentenceEncoder.load(model).to(choose_device(device))


def each_domain(models: Mapping[str, str]) -> dict[str, str]:
    """Return models by printed name, with a bank replaced by its usable domains: ``NAME:DOMAIN``.

    Raises:
        CseError: a bank without a usable domain, or two models of one name.
    """
    named: dict[str, str] = {}
    for name, model in models.items():
        found = {name: model}
        if is_bank(model):
            domains = Bank(model).domains()
            if not domains.usable:
                raise CseError(f"{model}: no usable domain in the bank; `cse bank add` adds one")
            for reason in domains.refused.values():
                click.echo(f"warning: left out: {reason}", err=True)
            found = {f"{name}:{domain}": f"{model}:{domain}" for domain in domains.usable}
        if twice := found.keys() & named.keys():
            raise CseError(f"{min(twice)}: given twice; write NAME=MODEL with a different name for each")
        named |= found
    return named


def check_model(path_or_name: str) -> None:
    """Refuse paths that cannot be a model.

    Raises:
        CseError: the path is a file, does not exist, contains no model, or is a bank without a domain's name.
    """
    folder = Path(path_or_name)
    if domain_of(path_or_name) is not None:
        return
    refuse_whole_bank(folder)
    if folder.is_file() and not is_word_file(folder):
        raise CseError(f"{folder}: a file; name the folder of a checkpoint, bundle or backbone")
    if not folder.exists() and means_folder(path_or_name):
        raise CseError(f"{path_or_name}: no such folder{nearest(path_or_name, map(str, folder.parent.glob('*/')))}")
    if folder.is_dir() and not any((folder / name).is_file() for name in (MANIFEST, "checkpoint.json", "config.json")):
        raise CseError(f"{folder}: contains no checkpoint.json, bundle.json or config.json; is it a model folder?")
