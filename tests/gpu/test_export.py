"""Bundles: torch on the device against onnxruntime, on the CPU and on the device's own provider."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.export.systems import PARTS, ROWS, SENTENCES

LARGEST, LARGEST_HALF = 2e-5, 3e-3


@pytest.fixture(scope="module", autouse=True)
def packages():
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def provider(device) -> str:
    """The device's provider; skips where onnxruntime has none."""
    from cse.runtime.session import no_cuda_reason

    reason = no_cuda_reason()
    if device.type == "cuda" and reason:
        pytest.skip(reason)
    return device.type


@pytest.fixture(scope="module")
def bundles(encoder_of, tmp_path_factory):
    """A bundle by kind of encoder and precision, each made once, and its encoder on the CPU."""
    from cse.export.bundle import write_bundle

    root, made = tmp_path_factory.mktemp("bundles"), {}

    def get(name, precision="fp32"):
        if (name, precision) not in made:
            encoder = encoder_of(name)
            out = root / f"{len(made)}"
            with write_bundle(encoder, out, normalize=True, metrics={}, precision=precision):
                pass
            made[name, precision] = encoder, out
        encoder, out = made[name, precision]
        return encoder.to("cpu"), out

    return get


def apart(first, second) -> float:
    return np.abs(first.encode(SENTENCES) - second.encode(SENTENCES)).max()


@pytest.mark.parametrize("name", ROWS | PARTS)
def test_the_devices_provider_equals_torch(provider, bundles, figure, name):
    from cse.runtime.onnx_encoder import OnnxEncoder

    encoder, bundle = bundles(name)
    onnx = OnnxEncoder(bundle, provider=provider)
    assert onnx.provider == provider
    found = apart(onnx, encoder)
    figure(f"{found:.0e}", found)
    assert found <= LARGEST


def test_half_precision_on_the_devices_provider(provider, bundles, figure):
    from cse.runtime.onnx_encoder import OnnxEncoder

    encoder, bundle = bundles("bert key_value mean", "fp16")
    found = apart(OnnxEncoder(bundle, provider=provider), encoder)
    figure(f"{found:.0e}", found)
    assert 1e-6 < found <= LARGEST_HALF
