"""The sample: rows that the recorded losses of every preset were trained on, graded pairs, and none used twice."""

from hashlib import sha256

import pytest

from cse.data.sample import sample_pairs, sample_rows

FIRST_ROW = (
    "A weary secretary is taking on two salespeople at the headquarters early in the morning.",
    "At daybreak, an assistant is hiring two salespeople at the head office.",
    "A tired assistant is not taking on two salespeople at the headquarters early in the morning.",
)
ROWS_HASH = "19d1a820a3a0b117ea72b302b97a508d1d786f9f347b1c07566e36be610810a1"
PAIRS_HASH = "325af39e75ada22fcc2770829469215fae7181f2af224fa888a82eeb0ca598ec"


def test_recorded_rows_notice_any_change():
    rows, pairs = list(sample_rows("triplets")), sample_pairs("test")
    text = "\n".join("\t".join(row) for row in rows)
    scored = "\n".join(f"{a}\t{b}\t{s}" for a, b, s in zip(pairs.sentence1, pairs.sentence2, pairs.score, strict=True))
    assert rows[0] == FIRST_ROW
    assert (len(rows), sha256(text.encode()).hexdigest()) == (3000, ROWS_HASH)
    assert (len(pairs), sha256(scored.encode()).hexdigest()) == (1000, PAIRS_HASH)


@pytest.mark.parametrize(("view", "width"), [("sentences", 1), ("pairs", 2)])
def test_views_are_the_first_columns_of_the_same_rows(view, width):
    assert list(sample_rows(view)) == [row[:width] for row in sample_rows("triplets")]


def test_no_pair_both_selects_and_measures():
    dev, test = ({*zip(part.sentence1, part.sentence2, strict=True)} for part in map(sample_pairs, ("dev", "test")))
    assert (len(dev), len(test), dev & test) == (500, 1000, set())
