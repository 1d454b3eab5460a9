"""Arrays in files: what memory holds, and what it costs to encode a collection."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from cse.runtime import mapped as module
from cse.runtime.mapped import mapped_unit_vectors


def test_texts_are_encoded_a_part_at_a_time_and_lie_in_a_file(monkeypatch):
    monkeypatch.setattr(module, "TEXTS", 100)
    asked = []

    def encode(texts):
        asked.append(len(texts))
        return np.array([[3.0 * int(text), 4.0 * int(text)] * 100 for text in texts], np.float32)

    texts = [str(number) for number in range(1, 5051)]
    tracemalloc.start()
    found = mapped_unit_vectors(encode, texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (5050, 200) and asked == [100] * 50 + [50]
    assert np.linalg.norm(found, axis=1) == pytest.approx(1)
    assert peak < found.nbytes / 2, "4 MB of vectors"
