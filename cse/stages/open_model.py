"""Open any model a user names: checkpoint, ONNX bundle or bare backbone."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from cse.data.suite import SuiteData
from cse.errors import CseError, nearest
from cse.evaluation.linear import FAST, FULL
from cse.evaluation.record import trained_on, write_record
from cse.evaluation.suite import SuiteResults, evaluate_suite
from cse.evaluation.vectors import Encoder
from cse.model.backbone_files import means_folder
from cse.model.bare import BareBackbone, load_bare_backbone
from cse.model.checkpoint_config import identity_of, is_checkpoint, read_config, training_notes
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import is_word_file
from cse.runtime.bank import Bank, domain_of, is_bank
from cse.runtime.bundle import MANIFEST, read_manifest
from cse.runtime.domain import AUTO
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.runtime.opening import open_onnx, refuse_whole_bank
from cse.stages.common import CHECKPOINT
from cse.stages.environment import environment
from cse.training.precision import choose_device

_LONGEST = 200  # bytes of a folder name; leaves room for a draft suffix below the limit of 255


@dataclass(frozen=True)
class BackboneOf:
    """The bare backbone of a model, used as the model uses it: revision, length and task texts.

    Attributes:
        model: a checkpoint, whose weights it must have; or what its settings say of it.
    """

    model: Path | BareBackbone


def open_model(
    model: str | BackboneOf, *, device: str = "auto", banks: dict[Path, OnnxEncoder] | None = None
) -> Encoder:
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


def describe_model(model: str | BackboneOf) -> dict[str, Any]:
    """Return the known facts of a model: kind, backbone, prompt and, for a checkpoint, how it was trained."""
    if isinstance(model, BackboneOf):
        if isinstance(model.model, BareBackbone):
            said = asdict(model.model)
            named = {key: said.pop(key) for key in ("name", "revision")}
            return {"kind": "backbone", "backbone": named, "prompt": None, **said}
        recorded = read_config(model.model)["backbone"]
        return {
            "kind": "backbone",
            "backbone": {key: recorded[key] for key in ("name", "revision", "sha256")},
            "prompt": None,
        }
    found = domain_of(model)
    if found is not None:
        bank = Bank(found[0])
        if found[1] == AUTO:
            return {"kind": "bank", "backbone": bank.manifest.backbone, "prompt": None}
        facts = bank.domain(found[1]).facts
        known_of = {key: getattr(facts, key) for key in ("prompt", "pooler", "max_length")}
        return {"kind": "domain", "backbone": bank.manifest.backbone, **known_of}
    folder = Path(model)
    if is_checkpoint(folder):
        # without hashes, records of the same system differ only in their seed
        known_of = {key: value for key, value in read_config(folder).items() if key not in ("files", "seal")}
        return {"kind": "checkpoint", **known_of}
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder)
        known = ("backbone", "prompt", "pooler", "dimension", "max_length", "parity")
        rows = manifest.metrics.get("train", {}).get("trained_on")
        return {"kind": "bundle", **{name: getattr(manifest, name) for name in known}, "trained_on": rows}
    return {"kind": "backbone", "backbone": {"name": model}, "prompt": None}


def stale_bundles(models: Iterable[str | BackboneOf]) -> list[str]:
    """Return a line for each bundle that was not exported from the checkpoint it is compared with.

    A bundle is compared with the checkpoints among the models, or else with the checkpoint next to it. Bundles of bare
    backbones, and bundles that do not record their origin, are skipped.
    """
    folders = [Path(model) for model in models if isinstance(model, str)]
    named = [folder for folder in folders if is_checkpoint(folder)]
    lines = []
    for bundle in (folder for folder in folders if (folder / MANIFEST).is_file()):
        beside = bundle.resolve().parent / CHECKPOINT.name
        known = named or ([beside] if is_checkpoint(beside) else [])
        made_from = read_manifest(bundle).checkpoint
        if known and made_from and made_from not in map(identity_of, known):
            lines.append(
                f"{bundle}: was not exported from {' or '.join(map(str, known))}; run `cse export` "
                "to bundle that checkpoint"
            )
    return lines


def rows_of(models: Mapping[str, str | BackboneOf]) -> dict[str, str | None]:
    """Return the rows each model was trained on, by printed name; see ``trained_on``."""
    return {name: trained_on(describe_model(model)) for name, model in models.items()}


def evaluate_models(
    models: Mapping[str, str | BackboneOf],
    data: SuiteData,
    *,
    measures: Collection[str],
    device: str,
    batch_size: int,
    progress: bool,
    fast: bool = False,
    details: bool = False,
    done: Callable[[str, SuiteResults], object] | None = None,
) -> dict[str, SuiteResults]:
    """Evaluate the given models one after the other.

    Args:
        models: checkpoint, bundle or backbone by printed name.
        data: evaluation data.
        measures: a subset of ``cse.evaluation.suite.MEASURES``.
        device: ``auto``, ``cpu`` or ``cuda``.
        batch_size: sentences per forward pass.
        progress: whether to show progress bars.
        fast: use SentEval's fast settings for the transfer tasks.
        details: also collect one task's pairs for figures.
        done: called with each model's name and results once it is evaluated.
    """
    banks: dict[Path, OnnxEncoder] = {}
    for model in models.values():
        if isinstance(model, str):
            check_model(model)
            if domain_of(model) is not None:
                open_model(model, device=device, banks=banks)  # raises for an unknown domain before any work
    for line in stale_bundles(models.values()):
        click.echo(f"warning: {line}", err=True)
    results = {}
    chosen = choose_device(device)
    for name, model in models.items():
        encoder = open_model(model, device=device, banks=banks)
        click.echo(f"measuring {name}", err=True)
        with _ClassifierBar(progress) as bar:
            results[name] = evaluate_suite(
                encoder,
                data,
                batch_size=batch_size,
                progress=progress,
                classifier=FAST if fast else FULL,
                device=chosen,
                advance=bar.advance,
                measures=measures,
                details=details,
            )
        if done is not None:
            done(name, results[name])
    return results


def save_record(folder: Path, name: str, model: str | BackboneOf, results: SuiteResults, device: str) -> None:
    """Write the record of a model's results into an existing, empty folder; see ``write_record``."""
    where = environment(choose_device(device).type)
    write_record(
        folder, name, results, model=describe_model(model), environment=where, identity=identity_of_model(model)
    )


def identity_of_model(model: str | BackboneOf) -> str:
    """Return the identity of a checkpoint, empty for another model."""
    return identity_of(Path(model)) if isinstance(model, str) and is_checkpoint(Path(model)) else ""


def record_folder(name: str) -> str:
    """Return a folder name for a model name: letters, digits, dots and dashes, cut to file system limits."""
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.")
    return plain.encode()[:_LONGEST].decode(errors="ignore") or "model"


class _ClassifierBar:
    """A progress bar for each transfer task."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.bar: Any = None
        self.task = ""

    def __enter__(self) -> _ClassifierBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def advance(self, task: str, ended: int, total: int) -> None:
        """Advance the bar by the classifiers of a task that have finished."""
        if task != self.task:
            self.__exit__()
            self.bar = tqdm(total=total, desc=task, unit="fold", disable=not self.shown)
            self.task = task
        self.bar.update(ended)
