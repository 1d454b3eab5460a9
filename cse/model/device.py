"""What numbers are computed by: the device of torch, its precision, versions of packages; and when memory ran out."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from cse.errors import CseError


def choose_device(wish: str) -> torch.device:
    """Return the device of torch for a ``Provider``, the CPU beside OpenVINO."""
    if wish == "cuda" and not torch.cuda.is_available():
        raise CseError("device: cuda was requested, but torch sees no GPU; install a CUDA build or choose auto or cpu")
    if wish == "auto":
        wish = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cpu" if wish == "openvino" else wish)


def choose_bf16(wish: str, device: torch.device) -> bool:
    """Return whether matrix products run in bfloat16; ``auto`` requires native hardware support."""
    if wish == "fp32":
        return False
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if wish == "bf16" and not native and device.type == "cuda":
        raise CseError("train.precision: this GPU has no bf16 matrix products; choose auto or fp32")
    return native or wish == "bf16"


# from CUDA, cuBLAS, torch's allocator, the C++ library and the matrix product library
_SAID = re.compile(
    "out[ _]of[ _]memory|CUBLAS_STATUS_ALLOC_FAILED|can't allocate memory|bad_alloc|could not create a primitive"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


PACKAGES = (
    "cse", "torch", "transformers", "tokenizers", "onnxruntime", "onnxruntime-gpu", "numpy", "scipy", "scikit-learn",
)  # fmt: skip


def environment(device: str) -> dict[str, str]:
    """Return package versions, processor and device as text by name."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    found["processor"] = f"{_processor()}, {os.cpu_count()} cores"
    found["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return found


def _processor() -> str:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return platform.processor() or "unknown"
