"""Read the weight files of other code bases: safetensors, or torch's own format as far as it holds tensors alone."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cse.errors import CseError

MODEL_FILES = ("model.safetensors", "pytorch_model.bin")
AGAIN = "fetch it again"


def find_file(source: Path, names: Sequence[str]) -> Path:
    """Return the weight file that a user means: the file itself, or the one of these names in a folder."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise CseError(f"{source}: no such file or folder; give the folder of a released model, or its weight file")
    found = [source / name for name in names if (source / name).is_file()]
    if not found:
        raise CseError(f"{source}: holds neither {' nor '.join(names)}; give the folder of a released model")
    if len(found) > 1:
        raise CseError(f"{source}: holds {' and '.join(path.name for path in found)}; name the file that counts")
    return found[0]


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return a file's tensors by name, on the CPU. No code of the file is run."""
    try:
        tree: Any = load_file(path) if path.suffix == ".safetensors" else _load_torch(path)
    except SafetensorError as error:
        reason = str(error).splitlines()[0]
        raise CseError(f"{path}: truncated or not a safetensors file ({reason}); {AGAIN}") from None
    if not isinstance(tree, dict) or not tree:
        raise CseError(
            f"{path}: holds a {type(tree).__name__}, not tensors by name; give the file of a model's weights"
        )
    for name, value in tree.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise CseError(
                f"{path}: {name} is a {type(value).__name__}, not a tensor; give the file of a model's weights"
            )
    return tree


def _load_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and "global" not in str(error):
            raise CseError(f"{path}: truncated or not a file of torch; {AGAIN}") from None
        raise CseError(
            f"{path}: holds more than tensors, and no code of a file is run; save its weights alone"
        ) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a seek to a place that the file does not have
            raise
        raise CseError(f"{path}: truncated or not a file of torch; {AGAIN}") from None
    except (RuntimeError, EOFError, ValueError, KeyError, IndexError):
        raise CseError(f"{path}: truncated or not a file of torch; {AGAIN}") from None
