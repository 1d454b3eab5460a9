"""MLM heads and generators that cannot be had; what they compute: test_terms, test_corruption in ``tests/training``."""

from __future__ import annotations

import numpy as np

from cse.model.mlm_head import UnigramGenerator


def test_the_ends_of_unigram_draws_are_words_of_the_text():
    columns = [np.array([2, 5, 5, 3]), np.array([2, 6, 5, 3]), np.array([], dtype=int)]
    generator = UnigramGenerator(columns, 8, special=(2, 3))
    ends = generator.propose(np.zeros((1, 2), int), np.ones((1, 2), int), np.array([[0.0, 1.0 - 1e-16]]))
    assert set(ends[0].tolist()) <= {5, 6}
