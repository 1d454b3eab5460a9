"""A language model in a GGUF file, as a folder of weights in full precision that everything else reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import cached_assets_path
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer, GgufConfig
from transformers.utils import is_accelerate_available, is_gguf_available

from cse.errors import CseError, one_line
from cse.files import write_json
from cse.model.quiet import quietly
from cse.runtime.seal import sha256

# llama.cpp's names, as sentence-transformers writes them; 0, no pooling, is what a plain language model says
_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}


def check_packages(wanted: str) -> None:
    """Raise ``CseError`` if packages are missing that the library reads GGUF files with; ``wanted`` begins its line."""
    if not (is_gguf_available() and is_accelerate_available()):
        raise CseError(f"{wanted}, pip install 'cse[gguf]'")


def dequantised(path: Path, weights: str) -> Path:
    """Return a folder with configuration, pooling, tokenizer and float32 weights of a GGUF file, made once per content.

    It lies in the hub's cache of assets (``HF_HOME``). The library's own loader unpacks the blocks.

    Args:
        weights: name of the weights' file in the folder; it is written last.
    """
    check_packages(f"backbone.name: to read {path}")
    folder = cached_assets_path("cse", namespace="gguf", subfolder=f"{sha256(path)}-pooled")
    if (folder / weights).is_file():
        return folder
    try:
        with quietly():
            model: Any = AutoModel.from_pretrained(
                path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
            AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
        pooling = _pooling_of(path)
    except Exception as error:  # the library's own, of many kinds
        reason = one_line(str(error))[:200] or type(error).__name__
        raise CseError(f"backbone.name: cannot read {path}: {reason}; fetch it again") from None
    config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    write_json(folder / "config.json", config)
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        write_json(folder / "1_Pooling/config.json", {"pooling_mode": pooling})
    draft = folder / f"{weights}.{os.getpid()}"
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, draft)
    draft.replace(folder / weights)
    return folder


def _pooling_of(path: Path) -> str | None:
    """Return what the file says of its pooling, None if it says nothing."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    found = next((field.contents() for name, field in fields.items() if name.endswith(".pooling_type")), 0)
    return _POOLINGS.get(found, f"pooling_type {found}")
