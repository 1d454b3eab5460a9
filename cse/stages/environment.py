"""The software versions and machine behind a result, for records and reports."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = (
    "cse", "torch", "transformers", "tokenizers", "onnxruntime", "onnxruntime-gpu", "numpy", "scipy", "scikit-learn",
)  # fmt: skip


def environment(device: str) -> dict[str, str]:
    """Return package versions, processor and device as text by name."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["processor"] = f"{_processor()}, {os.cpu_count()} cores"
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
