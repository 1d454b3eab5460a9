"""The encoding benchmark compares every contestant's vectors with those of our own encoder in fp32."""

import pytest

from benchmarks.encode import measure, parse


@pytest.mark.slow
def test_contestants_in_fp32_agree_and_others_nearly(tmp_path):
    words = ["--backbone", "random:tiny", "--device", "cpu", "--sentences", "30", "--rounds", "1"]
    found = measure(parse([*words, "--peers", "torch-fp32"]))["contestants"]
    peer = found["sentence-transformers torch-fp32"]["facts"]
    assert str(peer["batch_size"]) in peer["texts_per_s"][peer["way"]]
    for name, each in found.items():
        if "fp32" in name:
            assert each["largest_difference"] < 1e-5 and each["alone"] < 1e-5, name
        else:
            assert 1e-5 < each["largest_difference"] < 0.1, name
