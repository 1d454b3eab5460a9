"""The packages that decide what is exported."""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress

_PACKAGES = ("cse", "torch", "transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu", "tokenizers")


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what is exported, as far as they are installed."""
    found = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):  # run from its tree, or onnxruntime without a GPU
            found[name] = importlib.metadata.version(name)
    return found
