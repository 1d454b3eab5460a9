"""CxC-STS: reading caption pairs, and the bootstrap against a loop with one draw at a time."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from cse.data.suite import CXC_COLUMNS as COLUMNS
from cse.data.suite import read_cxc
from cse.evaluation.measures import Vectors
from cse.evaluation.sts import REPETITIONS, SEED, score_cxc
from tests.evaluation.test_sts import FakeEncoder
from tests.parts import refusal

SHARED = Path(__file__).parents[3] / "shared/data/cxc"


def write(path, rows, columns=COLUMNS):
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


def make_rows(images=12, captions=3):
    """Captions of an image form a chain; further pairs lead to other images."""
    rng = np.random.default_rng(0)

    def row(a, b, method):
        score = round(float(rng.uniform(0, 5)), 2)
        return [f"c{a}", f"c{b}", score, method, f"caption, number {a}", f"caption {b}"]

    rows = []
    for image in range(images):
        first = image * captions
        rows += [row(first + i, first + i + 1, "c2c_cocaption") for i in range(captions - 1)]
        rows += [row(first, (first + captions * k) % (images * captions), "c2c_isim") for k in (1, 3)]
    return rows


@pytest.fixture
def pairs(tmp_path):
    return read_cxc(write(tmp_path / "cxc.csv", make_rows()))


def test_bootstrap_is_a_loop_of_single_draws(pairs):
    vectors = Vectors(FakeEncoder(), [*pairs.sentence1, *pairs.sentence2])
    found = score_cxc(vectors, pairs)
    a, b = (vectors.of(texts).astype(np.float64) for texts in (pairs.sentence1, pairs.sentence2))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    lists = [np.flatnonzero(pairs.image == one) for one in np.unique(pairs.image)]
    rng = np.random.RandomState(SEED)
    scores = []
    for _ in range(REPETITIONS):
        drawn = rng.choice(len(lists), 6)
        rows = [lists[i][rng.randint(0, len(lists[i]))] for i in drawn]
        scores.append(spearmanr(cosines[rows], pairs.score[rows]).statistic)
    assert found.values["mean"] == pytest.approx(100 * np.mean(scores), abs=1e-9)
    assert found.values["std"] == pytest.approx(100 * np.std(scores), abs=1e-9)
    assert found.values["all_pairs"] == pytest.approx(100 * spearmanr(cosines, pairs.score).statistic, abs=1e-9)
    assert found.setting == "1,000 samples of 6 images with replacement, seed 123"


ROW = ["c1", "c2", "1.5", "c2c_cocaption", "one", "two"]
FEWER = [name for name in COLUMNS if name != "sampling_method"]


def test_a_broken_file_is_one_line(tmp_path):
    for rows, columns, said in (
        (
            [ROW, ["c2", "c1", "2", "c2c_isim", "two", "one"]],
            COLUMNS,
            "cxc.csv:3: repeats the pair of line 2; keep one",
        ),
        ([[*ROW[:2], "5.1", *ROW[3:]]], COLUMNS, "cxc.csv:2: score '5.1' is not a number from 0 to 5"),
        ([ROW[:5]], COLUMNS, "cxc.csv:2: 5 fields, but the header has 6"),
        ([[*ROW[:4], " ", "two"]], COLUMNS, "cxc.csv:2: no text in column 'sentence1'"),
        ([], COLUMNS, "cxc.csv: 0 pairs"),
        ([], FEWER, "no column 'sampling_method' (CxC-STS with its captions)"),
    ):
        assert said in refusal(read_cxc, write(tmp_path / "cxc.csv", rows, columns))
    write(tmp_path / "cxc_sts_test.csv", make_rows())
    assert "48 pairs, expected 44,045 as published" in refusal(read_cxc, tmp_path)
    assert "no such file; give the CSV of CxC-STS" in refusal(read_cxc, tmp_path / "none.csv")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared evaluation data are not here")
def test_real_file_has_the_published_images_and_captions():
    pairs = read_cxc(SHARED)
    assert len(pairs) == 44_045
    assert len(set(pairs.image)) == 5000
    assert len({*pairs.sentence1, *pairs.sentence2}) > 20_000
