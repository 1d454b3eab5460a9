"""Vectors and scores from the device equal those from the CPU, TF32 off."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.export.systems import PARTS, ROWS, SENTENCES
from tests.gpu.base import CPU
from tests.parts import backbone_of, prompted
from tests.tiny import WORDS, make_backbone_folder

LARGEST = 2e-5


def texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, int(rng.integers(1, 30)))) for _ in range(count)]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An encoder whose matrix products TF32 would change: BERT-base's width, two layers."""
    shape = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 2}
    shape |= {"initializer_range": 0.02, "max_position_embeddings": 128}
    folder = make_backbone_folder(tmp_path_factory.mktemp("large") / "bert", "bert", **shape)
    return prompted(backbone_of(folder), length=16, init_std=0.5, pooler="mean")


@pytest.mark.parametrize("name", ROWS | PARTS)
def test_encode(encoder_of, device, figure, name):
    encoder = encoder_of(name)
    sentences = [*SENTENCES, *texts(40)]
    expected = encoder.encode(sentences)
    found = encoder.to(device).encode(sentences)
    apart = np.abs(found - expected).max()
    figure(f"{apart:.0e}", apart)
    assert found.dtype == np.float32 and np.abs(expected).max() > 0.1
    assert apart <= LARGEST


def test_encode_at_a_real_width(large, device, figure):
    sentences = texts(200)
    expected = large.to(CPU).encode(sentences)
    found = large.to(device).encode(sentences)
    alone = np.stack([large.encode([text])[0] for text in sentences[:5]])
    apart = np.abs(found - expected).max(), np.abs(alone - expected[:5]).max()
    figure(f"batches {apart[0]:.0e}, one by one {apart[1]:.0e}")
    assert max(apart) <= LARGEST


def test_convolutions_are_exact_though_torch_rounds_them(encoder_of, device, figure, monkeypatch):
    """CuDNN's default is TF32; ``encode`` switches it off for itself."""
    encoder = encoder_of("bert cls prompt cnn")
    expected = encoder.encode(texts(40))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    apart = np.abs(encoder.to(device).encode(texts(40)) - expected).max()
    figure(f"{apart:.0e}", apart)
    assert apart <= LARGEST
