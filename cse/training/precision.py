"""Choose the device and precision of a run from what the machine supports."""

from __future__ import annotations

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
