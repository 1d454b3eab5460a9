"""Words and vectors together, against plain Python."""

import numpy as np
import pytest

from cse.search.hybrid import fuse, lent, search
from cse.search.words import Words, tokens


def reference(cosine, bm25, depth):
    """Half of each, one document after the other."""
    order = sorted(range(len(cosine)), key=lambda n: (-cosine[n], n))
    near = [n for n in order if cosine[n] > -np.inf][:depth]
    worded = sorted((n for n in range(len(bm25)) if bm25[n] > 0), key=lambda n: (-bm25[n], n))[:depth]
    scores = []
    for n in range(len(cosine)):
        least, most = min(cosine[m] for m in near), max(cosine[m] for m in near)
        score = 0.5 * float(cosine[n] - least) / float(most - least) if n in near else 0.0
        score += 0.5 * float(bm25[n]) / max(float(bm25[m]) for m in worded) if n in worded else 0.0
        scores.append(score if n in near or n in worded else -1.0)
    return scores


def drawn(seed: int, count: int = 40):
    rng = np.random.default_rng(seed)
    cosine, bm25 = rng.normal(size=count).astype(np.float32), rng.normal(size=count).astype(np.float32)
    return cosine, np.maximum(bm25, 0)


def unit_vectors(seed: int, count: int = 40) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(("depth", "words"), [(5, 1), (200, 1), (10, 0)])
def test_half_of_each_among_the_best_of_either(depth, words):
    cosine, bm25 = drawn(0)
    bm25 *= words
    cosine[3] = -np.inf
    bm25[3] = 0
    found, _ = fuse(cosine, bm25, depth)
    assert found == pytest.approx(reference(cosine.astype(float), bm25.astype(float), depth), abs=1e-12)
    assert found[3] == -1 and (depth < 200 or (found >= 0).sum() == len(found) - 1)
    best = np.argsort(-found, kind="stable")[:5].tolist()
    assert (best == np.argsort(-cosine)[:5].tolist()) == (not words), "words change the order"


def test_of_equal_cosines_all_count():
    found, vectors = fuse(np.full(3, 0.5, np.float32), np.array([0, 2, 1], np.float32))
    assert found.tolist() == [0.5, 1.0, 0.75]
    assert vectors.tolist() == [0.5] * 3


@pytest.mark.parametrize("rare", [1, 2, 3])
@pytest.mark.parametrize("alike", [False, True])
def test_rows_with_a_word_that_few_have_come_first(rare, alike):
    """Part numbers, names, dates: by vectors these rows are far, below the depth that is looked at."""
    rng = np.random.default_rng(rare)
    count = 500
    cosine, vectors = np.sort(rng.random(count).astype(np.float32))[::-1].copy(), unit_vectors(4, count)
    if alike:  # the nearest by vectors are all alike and lend each other their scores
        vectors[:20] = vectors[0]
        cosine[:20] = cosine[0]
    bm25 = np.zeros(count, np.float32)
    bm25[count - rare :] = rng.uniform(2, 3, rare)
    best = np.argsort(-search(cosine, bm25, vectors), kind="stable")[:10]
    assert bm25[best[0]] == bm25.max()
    assert alike or set(range(count - rare, count)) <= set(best.tolist())


def mean_of_nearest(scores, vectors):
    found = []
    for n in range(len(scores)):
        others = sorted((m for m in range(len(scores)) if m != n), key=lambda m: -float(vectors[n] @ vectors[m]))[:8]
        found.append(sum(scores[m] for m in others) / len(others))
    return np.array(found)


@pytest.mark.parametrize("rows", [7, 1000])
@pytest.mark.parametrize("count", [2, 5, 40])
def test_documents_that_are_alike_lend_each_other_their_scores(monkeypatch, count, rows):
    monkeypatch.setattr("cse.search.hybrid._ROWS", rows)
    scores, vectors = np.sort(np.random.default_rng(3).random(count))[::-1], unit_vectors(4, count)
    assert lent(scores, vectors) == pytest.approx(mean_of_nearest(scores, vectors))
    assert lent(np.array([0.5]), unit_vectors(0, 1)).tolist() == [0.5], "alone it keeps its score"
    assert not len(lent(np.array([]), unit_vectors(0, 0)))


def test_a_search_gives_up_vectors_for_what_is_alike_and_keeps_words():
    (cosine, bm25), vectors = drawn(5, 300), unit_vectors(6, 300)
    (fused, half), found = fuse(cosine, bm25), search(cosine, bm25, vectors)
    best = np.argsort(-fused, kind="stable")[:200]
    expected = fused[best] - 0.3 * half[best] + 0.3 * mean_of_nearest(fused[best], vectors[best])
    assert found[best] == pytest.approx(expected)
    assert (found >= 0).sum() == 200 < (fused >= 0).sum(), "of those that either finds, the best"


DOCUMENTS = ["cats sleep near dogs", "a dog barks", "dogs dogs dogs run", "", "the of and"]
TOKENS = [["cat", "sleep", "near", "dog"], ["dog", "bark"], ["dog", "dog", "dog", "run"], [], []]


def bm25(query: list[str], document: list[str]) -> float:
    there = [words for words in TOKENS if words]
    mean = np.mean(list(map(len, there)))
    score = 0.0
    for word in query:
        holding = sum(word in words for words in there)
        rarity = np.log(1 + (len(there) - holding + 0.5) / (holding + 0.5))
        count = document.count(word)
        score += rarity * 2.2 * count / (count + 1.2 * (1 - 0.75 + 0.75 * len(document) / mean))
    return score


@pytest.mark.parametrize("block", [2, 16_384])
def test_scores_are_those_of_the_equation_over_stems(monkeypatch, block):
    monkeypatch.setattr("cse.search.words.DOCUMENTS", block)
    queries = ["Dogs sleeping", "dog dog cats", "the", "zebra", ""]
    stems = [["dog", "sleep"], ["dog", "dog", "cat"], [], [], []]
    found = np.stack(list(Words(DOCUMENTS).scores(queries)))
    expected = [[bm25(query, document) for document in TOKENS] for query in stems]
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array(expected), abs=1e-6)
    assert not np.stack(list(Words(["", "the"]).scores(["dog", "the"]))).any(), "no document has a word"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Dogs' dog's DOGS, they\u2019ve don't (e.g. C, i.e. s)", "dog dog dog don c s"),
        ("E-1042, R&D, C; node_js v2.10", "e 1042 r d c node js v2 10"),
        ("C++ (c++17), C#\u2019s F#. A+ #c i++ \u2013 C", "cplusplus cplusplus 17 csharp fsharp c iplusplus c"),
        ("Acme\u2122 \u21165, 5 m\u00b2 K\u212a", "acm tm 5 5 m2 kk"),
        ("Caf\u00e9 cafe\u0301 CAF\u00c9 Stra\u00dfe \uff25\uff11\uff10", "cafe cafe cafe strass e10"),
        ("\u0645\u064e\u0631\u0652\u062d\u0640\u0628\u0627", "\u0645\u0631\u062d\u0628\u0627"),
        ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd soft\u00adware", "\u05e9\u05dc\u05d5\u05dd softwar"),
        ("\u652f\u6301", "\u652f \u6301 \u652f\u6301"),
        ("\u732b", "\u732b"),
        ("\u30d1\u30b9\u30fc3x", "\u30d1 \u30b9 \u30fc \u30d1\u30b9 \u30b9\u30fc 3x"),
        ("\ube44\ubc00 \ub2a6", "\ube44 \ubc00 \ube44\ubc00 \ub2a6"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u094d\u0926\u0940"),
        ("\u0623\u0646 \u0622\u0646", "\u0627\u0646 \u0627\u0646"),
        ("\u3105\u3106", "\u3105 \u3106 \u3105\u3106"),
        ("!!! \u2026 \u3002", ""),
    ],
)
def test_words_of_all_scripts(text, wanted):
    assert " ".join(tokens(text)) == wanted


def test_plain_text_takes_the_short_way_to_the_same_words():
    text = "The R&D of x_y, 3.5 mm; it's DOGS"
    assert tokens(f"{text} \u3042")[:-1] == tokens(text)
