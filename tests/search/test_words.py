"""BM25 against the equation written out (Robertson and Zaragoza 2009, Lucene's form; k1 1.2, b 0.75)."""

import numpy as np
import pytest

from cse.search.words import Words, tokens

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


def test_documents_without_a_word_score_nothing():
    assert not np.stack(list(Words(["", "the"]).scores(["dog", "the"]))).any()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Dogs' dog's DOGS, they\u2019ve don't (e.g. C, i.e. s)", "dog dog dog don c s"),
        ("E-1042, R&D, C; node_js v2.10", "e 1042 r d c node js v2 10"),
        ("C++ (c++17), C#\u2019s F#. A+ #c i++ \u2013 C", "cplusplus cplusplus 17 csharp fsharp c iplusplus c"),
        ("Acme\u2122 \u21165, 5 m\u00b2 K\u212a", "acm tm 5 5 m2 kk"),
        ("Caf\u00e9 cafe\u0301 CAF\u00c9 Stra\u00dfe \uff25\uff11\uff10", "cafe cafe cafe strass e10"),
        (
            "\u0645\u064e\u0631\u0652\u062d\u0640\u0628\u0627 \u0623\u0645",
            "\u0645\u0631\u062d\u0628\u0627 \u0627\u0645",
        ),
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
