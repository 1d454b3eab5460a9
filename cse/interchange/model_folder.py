"""Model folders as they travel: which files belong to one, and whether all of them are whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from cse.artifact import Kind, check_entries, check_files, listed, read_object, read_sealed, sealed, sha256, short
from cse.errors import CseError, in_terms_of
from cse.model.checkpoint import read_config, read_weights
from cse.model.declared import CARD, CONFIG_FILE, LENGTH, MODULES, PROMPTS, means_folder
from cse.runtime.bank import Bank, meaning_of
from cse.runtime.bundle import DOMAINS
from cse.runtime.bundle import MANIFEST as BUNDLE

LISTING = "cse.files.json"  # what `cse push` sent: kind, and hash of every file
_FORMAT = 2
ADAPTER = "adapter_config.json"  # PEFT's; exports have it or the modules.json of sentence-transformers
_BASE = "base_model_name_or_path"
_PLACES = (_BASE, "_name_or_path", "name_or_path")  # keys of other libraries that may hold a path
_CONFIGS = (ADAPTER, "config.json", LENGTH, PROMPTS)
# what makes a folder a model of its kind
_OWN = {kind: kind.manifest for kind in (Kind.CHECKPOINT, Kind.BUNDLE, Kind.BANK)}
_FIRST = _OWN | {Kind.SENTENCE_TRANSFORMERS: MODULES, Kind.PEFT: ADAPTER}
_AGAIN = "pull it again, or ask its author to push it again"
_EXPORT = "export the model again"


@dataclass(frozen=True)
class ModelFolder:
    """A whole model folder.

    Attributes:
        manifest: what its manifest says, as JSON values; of an export to another library, the backbone at most.
        changed: files that travel with other contents than the folder's.
        notes: what its own ``README.md`` says.
    """

    folder: Path
    kind: str
    manifest: dict[str, Any]
    files: tuple[str, ...]
    changed: dict[str, bytes] = field(default_factory=dict)
    notes: str = ""

    @property
    def backbone(self) -> dict[str, Any]:
        """Name, revision and hash of the backbone, as far as the manifest says them."""
        found = self.manifest.get("backbone")
        return found if isinstance(found, dict) else {}

    def contents(self) -> dict[str, Path | bytes]:
        """Return what travels: a path or the contents by name, with the listing of hashes."""
        found: dict[str, Path | bytes] = {name: self.changed.get(name, self.folder / name) for name in self.files}
        hashes = {
            name: hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else sha256(data)
            for name, data in found.items()
        }
        check_entries(hashes, self.folder, (), f"such a name cannot travel; {_EXPORT}")
        listing = sealed({"format": _FORMAT, "kind": self.kind, "files": hashes})
        return found | {LISTING: (json.dumps(listing, indent=2, sort_keys=True) + "\n").encode()}


def open_folder(folder: Path) -> ModelFolder:
    """Check a model folder and return what belongs to it."""
    if not folder.is_dir():
        raise CseError(f"{folder}: no such folder; give a checkpoint, a bundle, a bank or an exported folder")
    found = meaning_of(folder)
    if found.kind is Kind.CHECKPOINT:
        config = read_config(folder)
        read_weights(folder, config)
        return ModelFolder(folder, Kind.CHECKPOINT, config, (CONFIG_FILE, *config["files"]))
    if found.kind is not None:
        bank = Bank(folder)
        for reason in bank.domains().refused.values():
            raise CseError(f"{reason}; repair or remove it before the bank travels")
        domains = {path.relative_to(folder).as_posix() for path in folder.glob(f"{DOMAINS}/[!.]*")}
        files = (BUNDLE, *bank.manifest.files, *sorted(domains - bank.manifest.files.keys()))
        return ModelFolder(folder, found.kind, dataclasses.asdict(bank.manifest), files)
    return _open_export(folder)


def _open_export(folder: Path) -> ModelFolder:
    """Open an export to another library; ``cse`` listed its files when it wrote them."""
    kind, found = listed(folder)
    names = sorted(found - {CARD} - ({kind.manifest} if kind else set()))
    if kind not in (Kind.SENTENCE_TRANSFORMERS, Kind.PEFT):
        raise CseError(
            f"{folder}: not a model of this project; give a checkpoint (cse train, cse import), a bundle (cse export), "
            "a bank or an exported folder"
        )
    for name in names:
        if not (folder / name).is_file():
            raise CseError(f"{folder / name}: missing, though {kind.manifest} lists it; {_EXPORT}")
    base = read_object(folder / ADAPTER, _EXPORT).get(_BASE) if ADAPTER in names else None
    card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else ""
    notes = card.split("\n---\n", 1)[-1].strip() if card.startswith("---\n") else card.strip()
    return ModelFolder(folder, kind, {"backbone": {"name": str(base)}} if base else {}, tuple(names), notes=notes)


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
    if (kind := Kind(model.kind)) in _OWN and manifest != model.manifest:
        changed[kind.manifest] = (json.dumps(sealed(manifest | {"kind": kind}), indent=2) + "\n").encode()
    for file in model.files if model.kind in (Kind.SENTENCE_TRANSFORMERS, Kind.PEFT) else ():
        if PurePath(file).name in _CONFIGS:
            config = read_object(model.folder / file, _EXPORT)
            places = {key: _cut(config[key]) for key in _PLACES if key in config}
            if file == ADAPTER and known:
                places[_BASE] = manifest["backbone"]["name"]
            if not places.items() <= config.items():
                changed[file] = (json.dumps(config | places, indent=2) + "\n").encode()
    return dataclasses.replace(model, manifest=manifest, changed=changed)


def _cut(value: Any) -> Any:
    """Return JSON values with absolute paths cut to their last part."""
    if isinstance(value, dict):
        return {key: _cut(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner) for inner in value]
    if isinstance(value, str) and PurePath(value).is_absolute():
        return f"./{PurePath(value).name}"
    return value


def read_listing(path: Path, repo: str) -> tuple[Kind, dict[str, Any]]:
    """Return what ``cse push`` wrote down: the kind of a model, and size and hash of each file."""
    shown = Path(repo) / LISTING
    with in_terms_of(str(shown), str(path)):
        listing = read_sealed(path, _AGAIN)
    if listing.get("format") != _FORMAT or listing.get("kind") not in [*Kind]:
        what = f"a {short(listing.get('kind'))} in format {short(listing.get('format'))}"
        raise CseError(f"{shown}: lists {what}, which this version does not know; update cse")
    check_entries(listing.get("files"), shown, (), _AGAIN)
    return Kind(listing["kind"]), listing["files"]


def check_pulled(folder: Path, kind: Kind, files: Mapping[str, Any]) -> list[str]:
    """Check a folder that came from elsewhere against its listing, and its own manifest.

    Returns:
        The names of Python files in it, which only exports to other libraries may have.
    """
    check_files(folder, files, LISTING, _AGAIN)
    shown = ", ".join(sorted(files)[:3]) or "no file"
    if kind not in _FIRST:
        raise CseError(f"{folder}: sent as {kind} with {shown}, which is no model; {_AGAIN}")
    if _FIRST[kind] not in files:
        raise CseError(f"{folder}: sent as {kind}, but holds {shown} and no {_FIRST[kind]}; {_AGAIN}")
    if kind in _OWN:
        opened = open_folder(folder)
        if opened.kind != kind:
            raise CseError(f"{folder}: sent as {kind}, but is a {opened.kind}; {_AGAIN}")
        if foreign := sorted(files.keys() - {*opened.files}):
            raise CseError(f"{folder}: holds {foreign[0]}, which is no part of a {kind}; {_AGAIN}")
    return sorted(name for name in files if name.endswith(".py"))
