"""What an adaptation says first."""

from __future__ import annotations

import pytest

from cse.adapt.summary import _verdict
from cse.evaluation.compared import Compared
from cse.evaluation.comparison import Comparison


def one(measure, difference, low, high, main=False):
    return Compared("intents", measure, main, Comparison(50, 50 + difference, low, high, 0.01, 3080, (1, 3)))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([one("kNN", 1.0, 0.4, 1.6, True), one("MAP", -1, -2, -0.5)], "It helped: intents kNN rose by 1.00."),
        ([one("kNN", -1.0, -2, -0.4, True), one("MAP", 1, 0.5, 2)], "It did not help: intents kNN fell by 1.00."),
        (
            [one("kNN", 0.6, -0.2, 1.4, True), one("MAP", 13.84, 13, 14), one("probe", -1, -2, -0.1)],
            "It helped in part: intents MAP rose by 13.84; kNN shows no difference at this size.",
        ),
        (
            [one("kNN", 0.6, -0.2, 1.4, True), one("MAP", -2.0, -3, -1)],
            "It did not help: intents MAP fell by 2.00; kNN shows no difference at this size.",
        ),
        ([one("kNN", 0.6, -0.2, 1.4, True)], "It made no difference on intents that 3,080 items can show."),
        ([], "adapted, but nothing of your own was measured"),
    ],
)
def test_the_first_line(own, said):
    assert _verdict(own) == said
