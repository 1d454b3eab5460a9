"""The machine's own floor: its rate of plain matrix products with a backbone's shapes, and the FLOPs of a pass.

    python -m benchmarks.floor                                # MiniLM's shapes
    python -m benchmarks.floor --backbone random:bert-base    # BERT-base's

A pass of a transformer is matrix products; all else (attention's own products, sums, norms, padding, launches, Python)
is what an implementation adds. Share of floor: (FLOPs of the real tokens / seconds) / measured rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.backbones import add_backbone, backbone_folder
from cse.training.device import choose_device

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
REPEATS = 7
# tokens of a product: enough that more do not raise the rate
_TOKENS = {"cpu": 2048, "cuda": 16384}
# FLOPs per weight and real token: a product's forward is 2, its gradient by the input 2, by the weight 2
FORWARD, FROZEN_STEP, FULL_STEP = 2, 4, 6


def weights(model: torch.nn.Module) -> int:
    """Return the number of weights in the matrix products of a transformer's layers: P, without embeddings."""
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and "embeddings" not in name and "pooler" not in name
    )


def share(tokens_per_second: float, per_weight: int, count: int, rate: float | None) -> float | None:
    """Return the share of the floor, 0 to 1; None where its rate was not measured.

    Args:
        tokens_per_second: real tokens per second, without padding and prompts.
        per_weight: FLOPs per weight and token: ``FORWARD``, ``FROZEN_STEP`` or ``FULL_STEP``.
    """
    return None if rate is None else tokens_per_second * per_weight * count / rate


def measure(config: Any, device: torch.device) -> dict[str, float]:
    """Return FLOP/s of the matrix products of one layer, by precision; TF32 is off.

    Args:
        config: a transformers configuration with ``hidden_size`` and ``intermediate_size``.
        device: CPU or GPU.
    """
    tokens, width, inner = _TOKENS[device.type], config.hidden_size, config.intermediate_size
    shapes = [(width, width)] * 4 + [(width, inner), (inner, width)]
    names = ("fp32", "bf16", "fp16") if device.type == "cuda" else ("fp32", "bf16")
    found = {}
    for name in names:
        dtype = DTYPES[name]
        layer = [
            (torch.randn(tokens, given, device=device, dtype=dtype), torch.randn(out, given, device=device).to(dtype))
            for given, out in shapes
        ]
        with _without_tf32(), torch.inference_mode():
            seconds = [_seconds(layer, device) for _ in range(REPEATS + 2)][2:]  # the first warm up
        found[name] = 2 * tokens * sum(given * out for given, out in shapes) / statistics.median(seconds)
    return found


def better(rates: dict[str, float], again: dict[str, float]) -> dict[str, float]:
    """Return the higher of two measurements, by precision: other load slows products, nothing speeds them up."""
    return {name: max(rate, again[name]) for name, rate in rates.items()}


def _seconds(layer: list[tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> float:
    """Return the seconds of the products of one layer."""
    times = 10 if device.type == "cuda" else 1  # a GPU would be done before it is waited for
    wait(device)
    start = time.perf_counter()
    for values, weight in layer * times:
        torch.nn.functional.linear(values, weight)
    wait(device)
    return (time.perf_counter() - start) / times


def wait(device: torch.device) -> None:
    """Wait until a GPU has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _without_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def name_of(device: torch.device) -> str:
    """Return ``cpu``, or the GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def in_words(rates: dict[str, float]) -> str:
    """Return the rates as a line of text."""
    return "floor, plain matrix products: " + ", ".join(
        f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in rates.items()
    )


def main() -> None:
    """Measure and print."""
    from transformers import AutoConfig

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_backbone(parser)
    options = parser.parse_args()
    with backbone_folder(options.backbone) as folder:
        print(in_words(measure(AutoConfig.from_pretrained(folder), choose_device(options.device))))


if __name__ == "__main__":
    main()
