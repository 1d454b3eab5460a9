"""The classifier's file: written, read, and refused where it does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from cse.errors import CseError
from cse.runtime.classifier import CLASSIFIER, Classifier, ClassifierFacts, read_classifier

FACTS = ClassifierFacts(["a", "b", "c"], names=True, rows=9, accuracy=0.9, threshold=0.6, false_alarms=0.05)
OURS = Classifier(FACTS, np.eye(3, 5, dtype=np.float32) * 4, np.array([0, 0, 1], np.float32))


def test_it_comes_back_as_it_was_and_tells_the_unknown(tmp_path):
    OURS.write(tmp_path)
    found = read_classifier(tmp_path, 5)
    assert found.facts == FACTS
    near, between = np.eye(2, 5, dtype=np.float32)[0], np.full(5, 0.2, np.float32)
    first, second = found.classify(np.stack([near, between]))
    chance = np.exp([4, 0, 1]) / np.exp([4, 0, 1]).sum()
    assert (first.label, first.known, second.label, second.known) == ("a", True, "c", False)
    assert first.probability == pytest.approx(chance[0], abs=1e-6)
    np.testing.assert_allclose(found.probabilities(near[None])[0], chance, atol=1e-6)


@pytest.mark.parametrize(
    ("facts", "weight", "said"),
    [
        ("{", (3, 5), "no classifier"),
        ("[]", (3, 5), "no object"),
        (None, (3, 5), "no classifier"),
        ('{"labels": ["a", "b"], "names": true}', (3, 5), "not those of 2 labels in 5 dimensions"),
        ('{"labels": ["a", "b", "c"], "names": true}', (3, 4), "not those of 3 labels in 5 dimensions"),
        ('{"labels": ["a", "b", "c"], "names": true, "threshold": 7.0}', (3, 5), "threshold is 7.0"),
        ('{"labels": "abc", "names": true}', (3, 5), "'labels' should be list"),
    ],
)
def test_another_file_is_refused_in_a_line(tmp_path, facts, weight, said):
    tensors = {"weight": np.zeros(weight, np.float32), "bias": np.zeros(3, np.float32)}
    save_file(tensors, tmp_path / CLASSIFIER, None if facts is None else {"cse": facts})
    with pytest.raises(CseError, match=f"{re.escape(CLASSIFIER)}: .*{said}"):
        read_classifier(tmp_path, 5)
