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
def bundle_of(encoder_of, tmp_path_factory):
    """Make a bundle of a kind of encoder in a precision; returns its encoder on the CPU, and the folder."""
    from cse.export.bundle import write_bundle

    def make(name, precision="fp32"):
        encoder, out = encoder_of(name), tmp_path_factory.mktemp("bundle") / "bundle"
        with write_bundle(encoder, out, normalize=True, metrics={}, precision=precision):
            return encoder, out

    return make


def apart(first, second) -> float:
    return np.abs(first.encode(SENTENCES) - second.encode(SENTENCES)).max()


@pytest.mark.parametrize("name", ROWS | PARTS)
def test_the_devices_provider_equals_torch(provider, bundle_of, figure, name):
    from cse.runtime.onnx_encoder import OnnxEncoder

    encoder, bundle = bundle_of(name)
    onnx = OnnxEncoder(bundle, provider=provider)
    assert onnx.provider == provider
    found = apart(onnx, encoder)
    figure(f"{found:.0e}", found)
    assert found <= LARGEST


def test_half_precision_on_the_devices_provider(provider, bundle_of, figure):
    from cse.runtime.onnx_encoder import OnnxEncoder

    encoder, bundle = bundle_of("bert key_value mean", "fp16")
    found = apart(OnnxEncoder(bundle, provider=provider), encoder)
    figure(f"{found:.0e}", found)
    assert 1e-6 < found <= LARGEST_HALF
