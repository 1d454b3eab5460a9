"""Model folders as they travel: which files belong to one, and whether all of them are whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from cse.errors import CseError, in_terms_of
from cse.model.checkpoint import read_config, read_weights, write_config
from cse.model.declared import CONFIG_FILE, is_checkpoint, means_folder
from cse.outputs import MANIFEST as OUTPUT
from cse.outputs import Kind
from cse.runtime.bank import BANK, DOMAINS, Bank, is_bank
from cse.runtime.bundle import MANIFEST as BUNDLE
from cse.runtime.bundle import verify
from cse.runtime.seal import SEAL, check_entries, check_files, check_seal, describe_files, read_object, sealed

LISTING = "cse.files.json"  # what `cse push` sent: kind, and hash of every file
CARD = "README.md"
_FORMAT = 1
MODULES, ADAPTER = "modules.json", "adapter_config.json"  # exports to sentence-transformers and PEFT have one of these
ROUTER = "router_config.json"  # of sentence-transformers, for a query side
_BASE = "base_model_name_or_path"
_PLACES = (_BASE, "_name_or_path", "name_or_path")  # keys of other libraries that may hold a path
_CONFIGS = (ADAPTER, "config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
_FIRST = {  # what makes a folder a model of its kind
    Kind.CHECKPOINT: CONFIG_FILE,
    Kind.BUNDLE: BUNDLE,
    Kind.BANK: BANK,
    Kind.SENTENCE_TRANSFORMERS: MODULES,
    Kind.PEFT: ADAPTER,
}
_AGAIN = "pull it again, or ask its author to push it again"


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
        hashes = describe_files(self.folder, self.files)
        for name, data in self.changed.items():
            hashes[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        check_entries(hashes, self.folder, (), "such a name cannot travel; export the model again")
        listing = sealed({"format": _FORMAT, "kind": self.kind, "files": hashes})
        return found | {LISTING: (json.dumps(listing, indent=2, sort_keys=True) + "\n").encode()}


def open_folder(folder: Path) -> ModelFolder:
    """Check a model folder and return what belongs to it."""
    if not folder.is_dir():
        raise CseError(f"{folder}: no such folder; give a checkpoint, a bundle, a bank or an exported folder")
    if is_checkpoint(folder):
        config = read_config(folder)
        read_weights(folder, config)
        files = config["files"] or {"weights.safetensors": {}}
        return ModelFolder(folder, Kind.CHECKPOINT, config, (CONFIG_FILE, *files))
    if (folder / BUNDLE).is_file():
        bundle = verify(folder)
        return ModelFolder(folder, Kind.BUNDLE, dataclasses.asdict(bundle), (BUNDLE, *bundle.files))
    if is_bank(folder):
        return _open_bank(folder)
    return _open_export(folder)


def _open_bank(folder: Path) -> ModelFolder:
    bank = Bank(folder)
    domains = bank.domains()
    for reason in domains.refused.values():
        raise CseError(f"{reason}; repair or remove it before the bank travels")
    names = sorted(f"{DOMAINS}/{path.name}" for path in (folder / DOMAINS).iterdir() if not path.name.startswith("."))
    return ModelFolder(folder, Kind.BANK, dataclasses.asdict(bank.manifest), (BANK, *bank.manifest.files, *names))


def _open_export(folder: Path) -> ModelFolder:
    """Open an export to another library; ``cse`` listed its files when it wrote them."""
    try:
        listed = json.loads((folder / OUTPUT).read_text(encoding="utf-8"))
        kind, names = Kind(listed["kind"]), sorted(set(listed["files"]) - {OUTPUT, CARD})
    except (OSError, ValueError, TypeError, KeyError):
        kind, names = None, []
    if kind is None or not {MODULES, ADAPTER} & set(names):
        raise CseError(
            f"{folder}: not a model of this project; give a checkpoint (cse train, cse import), a bundle (cse export), "
            "a bank or an exported folder"
        )
    for name in names:
        if not (folder / name).is_file():
            raise CseError(f"{folder / name}: missing, though {OUTPUT} lists it; export the model again")
    base = _object(folder / ADAPTER).get(_BASE) if ADAPTER in names else None
    manifest = {"backbone": {"name": str(base)}} if base else {}
    return ModelFolder(folder, kind, manifest, tuple(names), notes=_body(folder / CARD))


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, "export the model again")
    except OSError as error:
        raise CseError(f"{path}: {error.strerror or error}; export the model again") from None


def _body(path: Path) -> str:
    """Return the text of a card without its metadata; empty if there is no card."""
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8")
    return text.split("\n---\n", 1)[-1].strip() if text.startswith("---\n") else text.strip()


def without_machine_paths(model: ModelFolder, name: str | None) -> ModelFolder:
    """Return the model with a manifest that names no folder of this machine: ``/home/me/bert`` becomes ``./bert``.

    Args:
        model: from ``open_folder``.
        name: hub id of the backbone; None: as recorded.
    """
    manifest = _cut(model.manifest)
    known = str(model.backbone.get("name", ""))
    if name is None and known and (Path(known).exists() or means_folder(known)):
        name = f"./{PurePath(known).name}"
    if name is not None and known:
        manifest["backbone"] = {**manifest["backbone"], "name": name}
    if {MODULES, ADAPTER} & set(model.files):
        return dataclasses.replace(model, manifest=manifest, changed=_changed_configs(model, manifest))
    if manifest == model.manifest:
        return model
    if model.kind == Kind.CHECKPOINT:
        return dataclasses.replace(model, manifest=manifest, changed={CONFIG_FILE: _checkpoint_text(manifest)})
    file = BUNDLE if model.kind == Kind.BUNDLE else BANK
    text = (json.dumps(sealed(manifest), indent=2, ensure_ascii=True) + "\n").encode()
    return dataclasses.replace(model, manifest=manifest, changed={file: text})


def _changed_configs(model: ModelFolder, manifest: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the configs of an export that name a folder of this machine, without it."""
    changed = {}
    for name in model.files:
        if PurePath(name).name in _CONFIGS:
            config = _object(model.folder / name)
            places = {key: _cut(config[key]) for key in _PLACES if key in config}
            if name == ADAPTER and "backbone" in manifest:
                places[_BASE] = manifest["backbone"]["name"]
            if places != {key: config.get(key) for key in places}:
                changed[name] = (json.dumps(config | places, indent=2) + "\n").encode()
    return changed


def _cut(value: Any) -> Any:
    """Return JSON values with absolute paths cut to their last part."""
    if isinstance(value, dict):
        return {key: _cut(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_cut(inner) for inner in value]
    if isinstance(value, str) and PurePath(value).is_absolute():
        return f"./{PurePath(value).name}"
    return value


def _checkpoint_text(config: Mapping[str, Any]) -> bytes:
    with TemporaryDirectory() as place:
        write_config(Path(place), {name: value for name, value in config.items() if name != SEAL})
        return (Path(place) / CONFIG_FILE).read_bytes()


def read_listing(path: Path, repo: str) -> tuple[Kind, dict[str, Any]]:
    """Return what ``cse push`` wrote down: the kind of a model, and size and hash of each file."""
    shown = Path(repo) / LISTING
    with in_terms_of(str(shown), str(path)):
        listing = read_object(path, _AGAIN)
    if listing.get("format") != _FORMAT:
        raise CseError(f"{shown}: format {str(listing.get('format'))[:20]}, this version reads {_FORMAT}; update cse")
    check_seal(listing, shown, _AGAIN)
    check_entries(listing.get("files"), shown, (), _AGAIN)
    try:
        return Kind(listing["kind"]), listing["files"]
    except (KeyError, ValueError):
        raise CseError(
            f"{shown}: lists a {str(listing.get('kind'))[:40]}, which this version does not know; update cse"
        ) from None


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
    if kind in (Kind.CHECKPOINT, Kind.BUNDLE, Kind.BANK):
        foreign = sorted(files.keys() - {*open_folder(folder).files})
        if foreign:
            raise CseError(f"{folder}: holds {foreign[0]}, which is no part of a {kind}; {_AGAIN}")
    return sorted(name for name in files if name.endswith(".py"))
