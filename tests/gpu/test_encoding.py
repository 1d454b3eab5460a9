"""Vectors from the device, of torch and of onnxruntime's own provider, equal torch's on the CPU, TF32 off."""

import numpy as np
import pytest
import torch

from tests.export.systems import PARTS, ROWS, SENTENCES
from tests.parts import backbone_of, prompted
from tests.tiny import WORDS, make_backbone_folder

LARGEST, LARGEST_HALF = 2e-5, 3e-3
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, int(RNG.integers(1, 30)))) for _ in range(200)]


@pytest.mark.parametrize("name", ROWS | PARTS)
def test_encode(encoder_of, device, figure, name):
    encoder, sentences = encoder_of(name), [*SENTENCES, *TEXTS[:40]]
    expected = encoder.encode(sentences)
    found = encoder.to(device).encode(sentences)
    apart = np.abs(found - expected).max()
    figure(f"{apart:.0e}", apart)
    assert found.dtype == np.float32 and np.abs(expected).max() > 0.1
    assert apart <= LARGEST


def test_encode_at_a_real_width(tmp_path, device, figure):
    """Matrix products that TF32 would change: BERT-base's width, two layers."""
    shape = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 2}
    folder = make_backbone_folder(tmp_path, "bert", initializer_range=0.02, max_position_embeddings=128, **shape)
    encoder = prompted(backbone_of(folder), length=16, init_std=0.5, pooler="mean")
    expected = encoder.encode(TEXTS)
    found = encoder.to(device).encode(TEXTS)
    alone = np.stack([encoder.encode([text])[0] for text in TEXTS[:5]])
    apart = np.abs(found - expected).max(), np.abs(alone - expected[:5]).max()
    figure(f"batches {apart[0]:.0e}, one by one {apart[1]:.0e}")
    assert max(apart) <= LARGEST


def test_convolutions_are_exact_though_torch_rounds_them(encoder_of, device, figure, monkeypatch):
    """CuDNN's default is TF32; ``encode`` switches it off for itself."""
    encoder = encoder_of("bert cls prompt cnn")
    expected = encoder.encode(TEXTS[:40])
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    apart = np.abs(encoder.to(device).encode(TEXTS[:40]) - expected).max()
    figure(f"{apart:.0e}", apart)
    assert apart <= LARGEST


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in ROWS | PARTS), ("bert key_value mean", "fp16")]
)
def test_the_devices_provider_equals_torch(encoder_of, device, figure, tmp_path, name, precision):
    """Skipped where packages of export are missing, or onnxruntime has no provider of the device."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    from cse.export.bundle import write_bundle
    from cse.runtime.onnx_encoder import OnnxEncoder
    from cse.runtime.session import no_cuda_reason

    if device.type == "cuda" and (reason := no_cuda_reason()):
        pytest.skip(reason)
    encoder = encoder_of(name)
    with write_bundle(encoder, tmp_path / "bundle", normalize=True, metrics={}, precision=precision):
        pass
    onnx = OnnxEncoder(tmp_path / "bundle", provider=device.type)
    assert onnx.provider == device.type
    apart = np.abs(onnx.encode(SENTENCES) - encoder.encode(SENTENCES)).max()
    figure(f"{apart:.0e}", apart)
    assert (0 if precision == "fp32" else 1e-6) <= apart <= (LARGEST if precision == "fp32" else LARGEST_HALF)
