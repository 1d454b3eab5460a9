"""Model folders as they travel: which files belong to one, and whether all of them are whole.

What travels is the folder's own manifest (``cse.artifact``) and the files that it lists.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from cse.artifact import Kind, check_entries, check_files, listed, read_object, read_sealed, sealed
from cse.errors import CseError, in_terms_of
from cse.model.checkpoint import read_config, read_weights
from cse.model.declared import CARD, LENGTH, MODULES, PROMPTS, means_folder
from cse.runtime.bank import Bank, meaning_of
from cse.runtime.bundle import DOMAINS

ADAPTER = "adapter_config.json"  # PEFT's; exports have it or the modules.json of sentence-transformers
_BASE = "base_model_name_or_path"
_PLACES = (_BASE, "_name_or_path", "name_or_path")  # keys of other libraries that may hold a path
_CONFIGS = (ADAPTER, "config.json", LENGTH, PROMPTS)
# and what makes a folder a model of its kind
_EXPORTS = {Kind.SENTENCE_TRANSFORMERS: MODULES, Kind.PEFT: ADAPTER, Kind.TRANSFORMERS_JS: "config.json"}
_KINDS = (Kind.CHECKPOINT, Kind.BUNDLE, Kind.BANK, *_EXPORTS)
_AGAIN = "pull it again, or ask its author to push it again"
_EXPORT = "export the model again"


@dataclass(frozen=True)
class ModelFolder:
    """A whole model folder.

    Attributes:
        manifest: what its manifest says, as JSON values; of an export, the backbone beside it.
        about: what a model says of itself: its config, or the facts of a bundle's domain; of an export nothing.
        files: that travel beside the manifest.
        changed: files that travel with other contents than the folder's.
        notes: what its own ``README.md`` says.
    """

    folder: Path
    kind: Kind
    manifest: dict[str, Any]
    about: dict[str, Any]
    files: tuple[str, ...]
    changed: dict[str, bytes] = field(default_factory=dict)
    notes: str = ""

    @property
    def backbone(self) -> dict[str, Any]:
        """Name, revision and hash of the backbone, as far as the manifest says them."""
        found = self.manifest.get("backbone")
        return found if isinstance(found, dict) else {}

    def contents(self) -> dict[str, Path | bytes]:
        """Return what travels, a path or the contents by name: the files, and a manifest that lists all of them."""
        known = self.manifest["files"] | {name: hashlib.sha256(data).hexdigest() for name, data in self.changed.items()}
        tree = sealed(self.manifest | {"files": {name: known.get(name, "") for name in self.files}})
        check_entries(tree["files"], self.folder, (), f"such a name cannot travel; {_EXPORT}")
        found: dict[str, Path | bytes] = {name: self.changed.get(name, self.folder / name) for name in self.files}
        return found | {self.kind.manifest: (json.dumps(tree, indent=2) + "\n").encode()}


def open_folder(folder: Path) -> ModelFolder:
    """Check a model folder and return what belongs to it."""
    if not folder.is_dir():
        raise CseError(f"{folder}: no such folder; give a checkpoint, a bundle, a bank or an exported folder")
    found = meaning_of(folder)
    if found.kind is Kind.CHECKPOINT:
        config = read_config(folder)
        read_weights(folder, config)
        return ModelFolder(folder, Kind.CHECKPOINT, config, config, (*config["files"],))
    if found.kind is not None:
        bank = Bank(folder)
        for reason in bank.domains().refused.values():
            raise CseError(f"{reason}; repair or remove it before the bank travels")
        domains = {path.relative_to(folder).as_posix() for path in folder.glob(f"{DOMAINS}/[!.]*")}
        tree = read_object(folder / found.kind.manifest, _EXPORT)
        about = vars((bank.only or bank.bare).facts) | {"dimension": bank.manifest.shape.dimension}
        about |= {"facts": bank.manifest.metrics.get("train"), "evaluation": bank.manifest.metrics.get("evaluation")}
        files = (*bank.manifest.files, *sorted(domains - bank.manifest.files.keys()))
        return ModelFolder(folder, found.kind, tree, about, files)
    return _open_export(folder)


def _open_export(folder: Path) -> ModelFolder:
    """Open an export to another library."""
    kind, _ = listed(folder)
    if kind not in _EXPORTS:
        raise CseError(
            f"{folder}: not a model of this project; give a checkpoint (cse train, cse import), a bundle (cse export), "
            "a bank or an exported folder"
        )
    tree = read_sealed(folder / kind.manifest, _EXPORT)
    check_entries(tree["files"], folder / kind.manifest, (_EXPORTS[kind],), _EXPORT)
    files = {name: found for name, found in tree["files"].items() if name != CARD}
    check_files(folder, files, kind.manifest, _EXPORT)
    if base := read_object(folder / ADAPTER, _EXPORT).get(_BASE) if ADAPTER in files else None:
        tree["backbone"] = {"name": str(base)}
    card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    notes = card.split("\n---\n", 1)[-1].strip() if card.startswith("---\n") else card.strip()
    return ModelFolder(folder, kind, tree, {}, tuple(files), notes=notes)


def without_machine_paths(model: ModelFolder, name: str | None) -> ModelFolder:
    """Return the model with a manifest that names no folder of this machine: ``/home/me/bert`` becomes ``./bert``.

    Args:
        model: from ``open_folder``.
        name: hub id of the backbone; None: as recorded.
    """
    manifest, known = _cut(model.manifest), str(model.backbone.get("name", ""))
    if known and name is None and (Path(known).exists() or means_folder(known)):
        name = f"./{PurePath(known).name}"
    if known and name is not None:
        manifest["backbone"] = {**manifest["backbone"], "name": name}
    changed: dict[str, bytes] = {}
    for file in model.files if model.kind in _EXPORTS else ():
        if PurePath(file).name in _CONFIGS:
            config = read_object(model.folder / file, _EXPORT)
            places = {key: _cut(config[key]) for key in _PLACES if key in config}
            if file == ADAPTER and known:
                places[_BASE] = manifest["backbone"]["name"]
            if not places.items() <= config.items():
                changed[file] = (json.dumps(config | places, indent=2) + "\n").encode()
    return dataclasses.replace(model, manifest=manifest, about=_cut(model.about), changed=changed)


def _cut(value: Any) -> Any:
    """Return JSON values with absolute paths cut to their last part."""
    if isinstance(value, dict):
        return {key: _cut(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner) for inner in value]
    if isinstance(value, str) and PurePath(value).is_absolute():
        return f"./{PurePath(value).name}"
    return value


def manifest_in(names: Collection[str]) -> str | None:
    """Return which of some files is a model's manifest; None: none of them."""
    return next((kind.manifest for kind in _KINDS if kind.manifest in names), None)


def read_listing(path: Path, repo: str) -> tuple[Kind, dict[str, str]]:
    """Return what ``cse push`` wrote down: the kind of a model, and the hash of each file; empty: it may change."""
    with in_terms_of(repo, str(path.parent)):
        tree = read_sealed(path, _AGAIN)
        kind = next((kind for kind in _KINDS if kind == tree.get("kind") and kind.manifest == path.name), None)
        if kind is None:
            raise CseError(f"{path}: is no manifest of a model; {_AGAIN}")
        check_entries(tree.get("files"), path, [_EXPORTS[kind]] if kind in _EXPORTS else (), _AGAIN)
    return kind, tree["files"]


def check_pulled(folder: Path) -> list[str]:
    """Check a folder that came from elsewhere, and return the names of Python files in it."""
    return sorted(name for name in open_folder(folder).files if name.endswith(".py"))
