"""The seven-task protocol and CxC-STS on made-up tasks and a fake encoder."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from cse.data.suite import CXC_COLUMNS as COLUMNS
from cse.data.suite import read_cxc
from cse.data.tasks.kinds import CaptionPairs, ScoredPairs
from cse.evaluation.measures import Averaged, Score, Vectors, pair_cosines, spearman
from cse.evaluation.score import score_dev
from cse.evaluation.sts import REPETITIONS, SEED, SEVEN_TASKS, evaluate_sts, score_cxc
from cse.evaluation.table import format_table
from tests.parts import refusal
from tests.rows import write_table

SHARED = Path(__file__).parents[3] / "shared/data/cxc"
WIDTH = 6


class FakeEncoder:
    """A fixed random vector per sentence; remembers what it was asked."""

    def __init__(self, broken=()):
        self.calls = []
        self.broken = broken

    def vector(self, sentence):
        return np.random.default_rng(list(sentence.encode())).normal(size=WIDTH).astype(np.float32)

    def encode(self, sentences, batch_size=32, normalize=True, show_progress_bar=False):
        self.calls.append((list(sentences), batch_size, normalize, show_progress_bar))
        vectors = np.stack([self.vector(sentence) for sentence in sentences])
        vectors[[sentence in self.broken for sentence in sentences]] = np.nan
        return vectors


def make_task(name, total):
    """A task whose sentences come from a small pool, so that they recur."""
    random = np.random.default_rng([0, *name.encode()])
    first, second = ([f"a heron waits, number {i}" for i in side] for side in random.integers(0, 40, size=(2, total)))
    return ScoredPairs(name, first, second, np.round(random.uniform(0, 5, size=total), 1))


def seven(**more):
    scores = [76.994, 80.005, 70.115, 85.25, 81.337, 79.999, 72.001]
    tasks = {name: Score({"all": score}) for name, score in zip(SEVEN_TASKS, scores, strict=True)}
    return Averaged(tasks | more, SEVEN_TASKS)


def test_scores_agree_with_a_reference():
    encoder = FakeEncoder()
    parts, subsets = [slice(0, 30), slice(30, 42), slice(42, 49)], np.repeat(["news", "video", "forum"], [30, 12, 7])
    tasks = [replace(make_task("STS12", 49), subset=subsets.tolist()), make_task("STS-B", 25)]
    results = evaluate_sts(encoder, tasks)
    for task in tasks:
        vectors = [[encoder.vector(text).astype(float) for text in side] for side in (task.sentence1, task.sentence2)]
        cosines = [u @ v / np.sqrt((u @ u) * (v @ v)) for u, v in zip(*vectors, strict=True)]
        expected = {"all": 100 * spearmanr(cosines, task.score)[0], "pairs": len(task)}
        if task.subset:
            of_parts = [100 * spearmanr(cosines[part], task.score[part])[0] for part in parts]
            expected |= {"mean": np.mean(of_parts), "wmean": np.dot(of_parts, [30, 12, 7]) / 49}
        assert results.to_dict("sts")["sts"][task.name] == pytest.approx(expected)
    alone = replace(tasks[0], subset=["one pair", *subsets[1:].tolist()])
    assert [*evaluate_sts(encoder, [alone]).tasks["STS12"].values] == ["all"], "one pair has no correlation"


# ---- averages -----------------------------------------------------------------------------------------------------


def test_avg_is_the_mean_of_rounded_scores_and_without_one_of_the_seven_there_is_none():
    results = seven()
    rounded = [round(score.values["all"], 2) for score in results.tasks.values()]
    assert results.average() == pytest.approx(sum(rounded) / 7, abs=1e-12)
    assert results.average() != pytest.approx(np.mean(list(results.figures.values())), abs=1e-5)
    beside = seven(own=Score({"all": 1.0}))
    assert (beside.average_name, beside.average()) == ("Avg.", results.average())
    backwards = Averaged(dict(reversed(beside.tasks.items())), SEVEN_TASKS)
    assert format_table({"m": backwards}).split()[1:9] == [*SEVEN_TASKS, "own"], "columns stand in the usual order"
    six = Averaged({name: score for name, score in results.tasks.items() if name != "STS14"}, SEVEN_TASKS)
    assert six.average_name == "mean of 6 tasks"
    assert "Avg." not in f"{six.to_dict('sts')}{format_table({'model': six})}"


# ---- what can go wrong --------------------------------------------------------------------------------------------


def test_an_embedding_that_is_not_finite_names_the_sentence():
    task = make_task("STS14", 20)
    encoder = FakeEncoder(broken={task.sentence2[3]})
    for said in (refusal(evaluate_sts, encoder, [task]), refusal(score_dev, encoder, task)):
        assert re.search(r"1 of \d+ embeddings are not finite", said) and task.sentence2[3] in said


def test_what_cannot_be_scored_is_one_line():
    for x, y, said in (
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], "STS12: all 3 similarities are equal"),
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], "STS12: all 3 gold scores are equal"),
        ([1.0], [1.0], "STS12: a rank correlation needs at least 2 pairs, found 1"),
    ):
        assert said in refusal(spearman, np.array(x), np.array(y), "STS12")


# ---- tables -------------------------------------------------------------------------------------------------------


def test_text_markdown_and_latex_hold_the_same_numbers():
    lines = format_table({"prompts, 12": seven(), "base": seven()}).splitlines()
    assert lines[0].split() == ["model", *SEVEN_TASKS, "Avg."]
    assert lines[1].split()[:4] == ["prompts,", "12", "76.99", "80.00"] and lines[2].startswith("base ")
    text, models = [lines[1].split()[-8:]], {"a_b & c|d": seven()}
    markdown = format_table(models, "markdown").splitlines()
    assert "a_b & c\\|d" in markdown[2]
    assert [line.strip("| ").split(" | ")[-8:] for line in markdown[2:]] == text
    latex = format_table(models, "latex").splitlines()
    assert latex[4].startswith(r"a\_b \& c|d & 76.99")
    assert latex[4].removesuffix(r" \\").split(" & ")[-8:] == text[0]


# ---- cosines and rank correlations ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_cosines_agree_with_a_float64_sum_and_equal_pairs_tie_exactly(dtype):
    a, b = np.random.default_rng(3).normal(size=(2, 500, 384)).astype(dtype)
    rows = zip(a[:20].astype(np.float64), b.astype(np.float64), strict=False)
    expected = [math.fsum(u * v) / math.sqrt(math.fsum(u * u) * math.fsum(v * v)) for u, v in rows]
    np.testing.assert_allclose(pair_cosines(a, b)[:20], expected, rtol=0, atol=1e-14)
    assert set(pair_cosines(a, a)) == {1.0}
    assert np.array_equal(pair_cosines(a, b), pair_cosines(b, a))


def test_a_cosine_that_is_no_number_counts_as_zero():
    a = np.array([[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [3.0, 4.0]])
    b = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(pair_cosines(a, b), [0.0, 0.0, 0.0, 1.0])


# ---- CxC-STS --------------------------------------------------------------------------------------------------------


def make_rows():
    """Three captions of each of twelve images form a chain; further pairs lead to other images."""
    scores, pairs = np.random.default_rng(0).uniform(0, 5, 48).round(2), []
    for first in range(0, 36, 3):
        pairs += [(first + i, first + i + 1, "c2c_cocaption") for i in (0, 1)]
        pairs += [(first, (first + further) % 36, "c2c_isim") for further in (3, 9)]
    return [
        [f"c{a}", f"c{b}", score, method, f"caption, number {a}", f"caption {b}"]
        for (a, b, method), score in zip(pairs, scores, strict=True)
    ]


def make_captions(folder) -> CaptionPairs:
    return read_cxc(write_table(folder / "cxc.csv", COLUMNS, make_rows()))


def test_bootstrap_is_a_loop_of_single_draws(tmp_path):
    pairs = make_captions(tmp_path)
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
    every = spearmanr(cosines, pairs.score).statistic
    assert [found.values[name] for name in ("mean", "std", "all_pairs")] == pytest.approx(
        [100 * np.mean(scores), 100 * np.std(scores), 100 * every], abs=1e-9
    )


ROW = ["c1", "c2", "1.5", "c2c_cocaption", "one", "two"]


def test_a_broken_file_is_one_line(tmp_path):
    for rows, said in (
        ([ROW, ["c2", "c1", "2", "c2c_isim", "two", "one"]], "cxc.csv:3: repeats the pair of line 2; keep one"),
        ([[*ROW[:2], "5.1", *ROW[3:]]], "cxc.csv:2: score '5.1' is not a number from 0 to 5"),
        ([], "cxc.csv: 0 pairs"),
    ):
        assert said in refusal(read_cxc, write_table(tmp_path / "cxc.csv", COLUMNS, rows))
    fewer = [name for name in COLUMNS if name != "sampling_method"]
    said = refusal(read_cxc, write_table(tmp_path / "cxc.csv", fewer, []))
    assert "no column 'sampling_method' (CxC-STS with its captions)" in said
    write_table(tmp_path / "cxc_sts_test.csv", COLUMNS, make_rows())
    assert "48 pairs, expected 44,045 as published" in refusal(read_cxc, tmp_path)
    assert "no such file; give the CSV of CxC-STS" in refusal(read_cxc, tmp_path / "none.csv")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared evaluation data are not here")
def test_real_file_has_the_published_images_and_captions():
    pairs = read_cxc(SHARED)
    assert (len(pairs), len({*pairs.image})) == (44_045, 5000)
    assert len({*pairs.sentence1, *pairs.sentence2}) > 20_000
