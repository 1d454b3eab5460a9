"""A guard on speed: ratios to sentence-transformers in the same run, with wide margins, never seconds.

A machine that is busy slows whoever runs then, so a ratio gets a second attempt before it fails.
"""

import json
import sys

import pytest
import torch

from benchmarks.harness import interleave, ratio, timed
from benchmarks.inputs import backbone_folder, rows_of, sentences_of
from benchmarks.peers.encoder_process import EncoderProcess
from benchmarks.peers.training import full_model, train
from benchmarks.train import default_encoder, seconds_per_step
from cse import OnnxEncoder
from cse.export.bundle import write_bundle
from cse.model.declared import MINILM
from cse.settings import Settings

CPU = torch.device("cpu")
ATTEMPTS = 2


def best_of_attempts(above, below, least: float) -> float:
    """Return the ratio of the first attempt that reaches ``least``, or the best."""
    found = []
    for _ in range(ATTEMPTS):
        seconds = interleave({"above": above, "below": below}, rounds=2)
        found.append(ratio(seconds["above"], seconds["below"]).median)
        if found[-1] >= least:
            break
    return max(found)


@pytest.mark.slow
def test_training_is_ahead_of_full_fine_tuning_in_the_same_precision():
    batch, steps = 16, 11
    rows = rows_of("triplets", batch * steps, None)
    with backbone_folder(MINILM) as folder:

        def ours() -> float:
            return seconds_per_step(rows, CPU, folder, batch_size=batch, precision="fp32")

        def theirs() -> float:
            return train(full_model(folder, CPU, 32), rows, batch_size=batch, first=5, bf16=False)[0]

        assert best_of_attempts(theirs, ours, 1.2) >= 1.2


@pytest.mark.slow
def test_encoding_is_not_behind_torch(tmp_path):
    texts = sentences_of(200, None)
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    with backbone_folder(MINILM) as folder:
        with write_bundle(default_encoder(Settings(), folder), tmp_path / "bundle", normalize=True, metrics={}):
            pass
        encoder = OnnxEncoder(tmp_path / "bundle", provider="cpu")
        encoder.encode(texts)
        with EncoderProcess(sys.executable, "torch-fp32", folder, tmp_path / "texts.json", "cpu") as peer:
            found = best_of_attempts(peer.seconds, lambda: timed(lambda: encoder.encode(texts)), 0.9)
    assert found >= 0.9
