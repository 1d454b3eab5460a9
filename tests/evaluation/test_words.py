"""BM25 against the equation written out (Robertson and Zaragoza 2009, Lucene's form; k1 1.5, b 0.75)."""

import subprocess
import sys

import numpy as np
import pytest

from cse.evaluation.words import Words
from tests.tiny import WORDS

DOCUMENTS = ["cats sleep near dogs", "a dog barks", "dogs dogs dogs run", "", "the of and"]
TOKENS = [["cat", "sleep", "near", "dog"], ["dog", "bark"], ["dog", "dog", "dog", "run"], [], []]


def bm25(query: list[str], document: list[str]) -> float:
    mean = np.mean([len(tokens) for tokens in TOKENS])
    score = 0.0
    for word in query:
        holding = sum(word in tokens for tokens in TOKENS)
        rarity = np.log(1 + (len(TOKENS) - holding + 0.5) / (holding + 0.5))
        count = document.count(word)
        score += rarity * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(document) / mean))
    return score


@pytest.mark.parametrize("block", [2, 16_384])
def test_scores_are_those_of_the_equation_over_stems(monkeypatch, block):
    monkeypatch.setattr("cse.evaluation.words.DOCUMENTS", block)
    queries = ["Dogs sleeping", "dog dog cats", "the", "zebra", ""]
    stems = [["dog", "sleep"], ["dog", "dog", "cat"], [], [], []]
    found = np.stack(list(Words(DOCUMENTS).scores(queries)))
    expected = [[bm25(query, document) for document in TOKENS] for query in stems]
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array(expected), abs=1e-6)


def test_documents_without_a_word_score_nothing():
    assert not np.stack(list(Words(["", "the"]).scores(["dog", "the"]))).any()


def test_scores_are_those_of_bm25s():
    bm25s, stemmer = pytest.importorskip("bm25s"), pytest.importorskip("Stemmer").Stemmer("english")
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(WORDS, rng.integers(3, 40))) for _ in range(60)]
    queries = [" ".join(rng.choice(WORDS, 5)) for _ in range(9)]
    index = bm25s.BM25()
    given = {"stopwords": "en", "stemmer": stemmer, "return_ids": False, "show_progress": False}
    index.index(bm25s.tokenize(documents, **given), show_progress=False)
    expected = [index.get_scores(tokens) for tokens in bm25s.tokenize(queries, **given)]
    assert np.stack(list(Words(documents).scores(queries))) == pytest.approx(np.stack(expected), abs=1e-5)


def test_jax_is_left_alone(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("print('jax starts')")
    code = "from cse.evaluation.words import Words; print(next(Words(['cats', 'dogs']).scores(['dogs']))[1] > 0)"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}; import jax"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["True", "jax starts"]  # not before it is asked for
