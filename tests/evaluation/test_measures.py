"""Measures of retrieval against trec_eval (pytrec_eval, ir_measures), and of labelled texts against scikit-learn."""

from dataclasses import replace
from functools import partial

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from sklearn.metrics import average_precision_score, f1_score
from sklearn.neighbors import KNeighborsClassifier

from cse.data.tasks.kinds import Retrieval, ScoredPairs
from cse.evaluation import labels, retrieval, space
from cse.evaluation.measures import Vectors
from cse.evaluation.pairs import average_precision, best_f1, triplet_hits
from cse.evaluation.retrieval import EXAMPLE, cosine_blocks, score_retrieval
from cse.evaluation.space import alignment, uniformity
from cse.runtime.encode import best_places, unit_rows
from tests.evaluation.test_sts import FakeEncoder
from tests.parts import refusal


def made_up(rng, queries: int, documents: int, judged: int, grades: int) -> Retrieval:
    """Judgements of different numbers per query, some of them of grade 0; each query has a relevant document."""
    rows = []
    for query in range(queries):
        places = rng.choice(documents, int(rng.integers(2, judged)), replace=False)
        grade = rng.integers(0, grades + 1, len(places))
        grade[0] = grades
        rows += [(query, place, value) for place, value in zip(places, grade, strict=True)]
    query, document, relevance = np.array(rows)[rng.permutation(len(rows))].T
    return Retrieval("t", ["q"] * queries, ["d"] * documents, query, document, relevance)


def trec_eval(task: Retrieval, cosine_QN: np.ndarray) -> dict[str, list[float]]:
    """Return trec_eval's values by query, given the ranking that the docstring promises: ties in document order."""
    judged: dict[str, dict[str, int]] = {}
    for query, document, grade in zip(task.query, task.document, task.relevance, strict=True):
        judged.setdefault(str(query), {})[str(document)] = int(grade)
    order_QN = np.argsort(-cosine_QN, axis=1, kind="stable")
    run = {str(q): {str(d): -float(place) for place, d in enumerate(row)} for q, row in enumerate(order_QN)}
    names = {"ndcg_cut_10": "nDCG@10", "recall_10": "recall@10", "recall_100": "recall@100", "map": "MAP"}
    found = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.10,100", "map"}).evaluate(run)
    values = {name: [found[str(q)][key] for q in range(len(task))] for key, name in names.items()}
    measured = ir_measures.iter_calc([ir_measures.RR @ 10], judged, run)
    mrr = {each.query_id: each.value for each in measured}
    return values | {"MRR@10": [mrr[str(q)] for q in range(len(task))]}


@pytest.mark.parametrize("grades", [1, 3])
@pytest.mark.parametrize("ties", [False, True])
def test_every_measure_is_that_of_trec_eval(grades, ties, monkeypatch):
    rng = np.random.default_rng(grades)
    task = made_up(rng, queries=37, documents=253, judged=30, grades=grades)
    lost = np.arange(0, 37, 3)  # queries with a relevant document that is not there; of the last, it is the only one
    found = task.query < 36
    task = replace(
        task,
        query=np.append(task.query[found], lost),
        document=np.append(task.document[found], np.full(13, -1)),
        relevance=np.append(task.relevance[found], np.full(13, grades)),
    )
    # products of small whole numbers are exact, so that equal ones are equal in any order of the sums
    vectors = rng.integers(-2, 3, (290, 4)) if ties else rng.normal(size=(290, 4))
    query, document = np.split(vectors.astype(np.float32), [37])
    monkeypatch.setattr(retrieval, "cosine_blocks", partial(cosine_blocks, cells=253 * 10))  # of 10, 10, 10, 7 rows
    found = retrieval.score_queries(query, document, task)
    expected = trec_eval(task, query.astype(np.float64) @ document.T.astype(np.float64))
    assert set(found) == set(expected) == set(retrieval.MEASURES)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-12, err_msg=name)
    relevant = np.bincount(task.query[task.relevance > 0], minlength=37)
    assert relevant.min() < 10 < relevant.max(), "queries with fewer and with more than 10 relevant documents"


def test_a_query_does_not_find_itself():
    """BEIR drops the pair from the run before trec_eval; a document that is judged relevant stays."""
    rng = np.random.default_rng(5)
    task = made_up(rng, queries=37, documents=253, judged=30, grades=3)
    query, document = np.split(rng.normal(size=(290, 16)).astype(np.float32), [37])
    relevant = set(zip(task.query[task.relevance > 0], task.document[task.relevance > 0], strict=True))
    own = np.full(37, -1)
    for place in range(0, 36, 2):
        own[place] = next(d for d in range(100 + place, 253) if (place, d) not in relevant)
    own[36] = next(d for q, d in relevant if q == 36)
    document[own[own >= 0]] = 9 * query[own >= 0]  # each is the nearest to its query
    cosine = query.astype(np.float64) @ document.T.astype(np.float64)
    plain = retrieval.score_queries(query, document, task)
    found = retrieval.score_queries(query, document, replace(task, own=own))
    cosine[np.arange(0, 36, 2), own[:36:2]] = -np.inf  # behind every relevant document is as good as dropped
    for name, values in trec_eval(task, cosine).items():
        np.testing.assert_allclose(found[name], values, atol=1e-12, err_msg=name)
    assert (found["MAP"] > plain["MAP"])[:36:2].all()
    assert found["MRR@10"][36] == 1


def test_of_equal_documents_the_first_ranks_higher():
    """Also where a matrix product rounds equal columns differently: 601 equal documents of an odd width."""
    document, query = np.split(unit_rows(np.random.default_rng(0).normal(size=(4, 387)).astype(np.float32)), [1])
    task = Retrieval("t", ["q"] * 3, ["d"] * 601, np.arange(3), np.array([600, 7, 0]), np.ones(3, int))
    found = retrieval.score_queries(query, np.repeat(document, 601, axis=0), task)
    np.testing.assert_allclose(found["MAP"], [1 / 601, 1 / 8, 1])


def test_a_document_is_as_near_as_its_nearest_passage():
    """Documents of one to four passages, some of them equal; each lends by the passage that is nearest."""
    rng = np.random.default_rng(3)
    task = made_up(rng, queries=11, documents=53, judged=12, grades=2)
    counts = rng.integers(1, 5, 53)
    first = np.cumsum(counts) - counts
    query = unit_rows(rng.normal(size=(11, 6)).astype(np.float32))
    passage = unit_rows(rng.normal(size=(counts.sum(), 6)).astype(np.float32))
    passage[first + counts - 1] = passage[first]  # the last one is the first again
    cosine = query @ passage.T
    best = np.array([[f + row[f : f + n].argmax() for f, n in zip(first, counts, strict=True)] for row in cosine])
    found = retrieval.score_queries(query, passage, task, first, words=True)
    for name, values in trec_eval(task, np.take_along_axis(cosine, best, axis=1).astype(np.float64)).items():
        np.testing.assert_allclose(found[name], values, atol=1e-12, err_msg=name)
    for number in range(11):  # as if each document were that passage
        alone = retrieval.score_queries(query, passage[best[number]], task, words=True)
        assert found["nDCG@10 with words"][number] == pytest.approx(alone["nDCG@10 with words"][number])


def test_best_places_take_the_earlier_of_equal_ones():
    cosine = np.array([0.1, 0.9, 0.5, 0.9, 0.5, 0.5])
    assert best_places(cosine, 4).tolist() == [1, 3, 2, 4]
    assert best_places(cosine, 9).tolist() == [1, 3, 2, 4, 5, 0]


def test_words_alone_and_words_with_vectors():
    """Vectors find the first query's document, words the second's; together both are found."""
    documents = ["red cats sleep", "old dogs bark", "small birds sing", "rain falls"]
    judged = np.array([[0, 1], [0, 2], [1, 1]])
    task = Retrieval("t", ["felines", "birds sing, rain"], documents, *judged)
    document = np.eye(4, dtype=np.float32)
    query = unit_rows(np.array([[1, 0.1, 0.2, 0.3], [0.9, 0.2, 0.5, 0.1]], np.float32))
    found = retrieval.score_queries(query, document, task, words=True)
    assert found["nDCG@10"] == pytest.approx([1, 1 / np.log2(3)])
    assert found["nDCG@10 of words"] == pytest.approx([1, 1]), "of equal scores the earlier document"
    assert found["nDCG@10 with words"] == pytest.approx([1, 1])
    alone = retrieval.score_queries(query, document, task)
    assert "nDCG@10 of words" not in alone and np.array_equal(alone["nDCG@10"], found["nDCG@10"])
    itself = replace(task, own=np.array([-1, 0]))
    assert retrieval.score_queries(query, document, itself, words=True)["nDCG@10"][1] == pytest.approx(1)


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_uniformity_is_the_loop_over_pairs_and_alignment_the_mean_squared_distance(monkeypatch, block):
    monkeypatch.setattr(space, "_BLOCK", block)
    rows = np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    kernel = [np.exp(-2 * ((unit[i] - unit[j]) ** 2).sum()) for i in range(11) for j in range(i)]
    assert uniformity(rows) == pytest.approx(np.log(np.mean(kernel)), abs=1e-12)
    assert "uniformity: sentence 2 of 3 has a zero vector" in refusal(uniformity, np.eye(3, 2)[[0, 2, 1]])
    assert "needs at least 2 sentences, found 1" in refusal(uniformity, np.ones((1, 3)))
    distances = [((unit[i] - unit[i + 5]) ** 2).sum() for i in range(5)]
    assert alignment(rows[:5], rows[5:10]) == pytest.approx(np.mean(distances))


ROWS = [
    ("a", "b", 5), ("c", "d", 5), ("a", "e", 5), ("f", "f", 5), ("g", "h", 2.5), ("i", "a", 1), ("k", "l", 5),
    ("b", "m", 0),
]  # fmt: skip


@pytest.mark.parametrize("block", [2, 1000])
def test_recall_is_the_loop_over_queries(monkeypatch, block):
    monkeypatch.setattr(retrieval, "_BLOCK", block)
    first, second, score = map(list, zip(*ROWS, strict=True))
    task = ScoredPairs("STS-B", first, second, np.array(score, dtype=float))
    vectors = Vectors(FakeEncoder(), [*task.sentence1, *task.sentence2, *EXAMPLE])
    found = score_retrieval(vectors, task)
    slots = task.sentence1 + task.sentence2
    pool = list(dict.fromkeys(slots))
    unit = unit_rows(vectors.of(pool).astype(np.float64))
    ranks = []
    for start, other in ((0, 8), (8, 0)):
        for row in np.flatnonzero(task.score == 5):
            query, partner = pool.index(slots[start + row]), pool.index(slots[other + row])
            if query != partner:
                cosines = unit @ unit[query]
                ranks.append(1 + int((np.delete(cosines, query) > cosines[partner]).sum()))
    assert [example.rank for example in found.examples] == ranks
    shares = {f"recall@{cut}": 100 * np.mean([rank <= cut for rank in ranks]) for cut in (1, 3, 5)}
    assert found.values == pytest.approx(shares)
    assert found.setting.startswith("8 queries")
    for example in found.examples:
        assert example.rank > 5 or example.nearest[example.rank - 1][0] == example.partner
        assert example.query not in dict(example.nearest)


# ---- labelled texts -------------------------------------------------------------------------------------------------


@pytest.fixture
def clouds():
    """Unit vectors of seven labels of unequal size: 131 reference and 57 test rows."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(7, 16))

    def draw(count):
        label = rng.choice(7, count, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05])
        return unit_rows((centres[label] + 1.6 * rng.normal(size=(count, 16))).astype(np.float32)), label

    (reference, reference_label), (test, test_label) = draw(131), draw(57)
    return test, test_label, reference, reference_label


def test_neighbours_are_those_of_scikit_learn_where_the_vote_has_a_winner(clouds):
    test, test_label, reference, reference_label = clouds
    other = KNeighborsClassifier(labels.NEIGHBOURS, metric="cosine", algorithm="brute").fit(reference, reference_label)
    votes = np.sort(other.predict_proba(test), axis=1)
    won = votes[:, -1] > votes[:, -2]
    assert 20 < won.sum() < len(test), "some votes are ties, which scikit-learn gives to the smaller label"
    expected = (other.predict(test) == test_label).astype(float)
    hits = (labels.neighbour_labels(test, reference, reference_label) == test_label).astype(float)
    np.testing.assert_array_equal(hits[won], expected[won])
    assert 0.3 < hits.mean() < 0.95


def test_a_tied_vote_goes_to_the_label_of_the_nearest_row():
    def on_circle(*degrees: float) -> np.ndarray:
        angle = np.radians(degrees)
        return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)

    reference = on_circle(2, -4, 6, -8, 10, 90)
    votes = np.array([5, 1, 1, 5, 3, 9])  # from 0 degrees: 5, 1, 1, 5, 3
    assert labels.neighbour_labels(on_circle(0, -6), reference, votes).tolist() == [5, 1]
    few = labels.neighbour_labels(on_circle(0), on_circle(10, 20, 30), np.array([2, 0, 0]))
    assert few.tolist() == [0], "fewer rows than neighbours all vote"


def test_same_label_precision_is_scikit_learns_average_precision(clouds, monkeypatch):
    test, label = clouds[:2]
    label[5] = 99  # alone
    monkeypatch.setattr(labels, "_CELLS", 57 * 20)  # blocks of 20, 20, 17 rows
    found = labels.same_label_precisions(test, label)
    cosine = test.astype(np.float64) @ test.T.astype(np.float64)
    others = [np.delete(np.arange(57), i) for i in range(57)]
    paired = [(i, rows) for i, rows in enumerate(others) if (label == label[i]).sum() > 1]
    expected = [average_precision_score(label[rows] == label[i], cosine[i, rows]) for i, rows in paired]
    assert len(expected) == 56
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_nearest_class_mean_is_the_nearest_centroid_by_angle(clouds):
    test, test_label, reference, reference_label = clouds
    means = unit_rows(np.stack([reference[reference_label == label].mean(axis=0) for label in range(7)]))
    expected = KNeighborsClassifier(1, metric="cosine").fit(means, np.arange(7)).predict(test)
    assert labels.class_mean_labels(test, reference, reference_label).tolist() == expected.tolist()
    assert 0.5 < (expected == test_label).mean() < 1
    others = labels.class_mean_labels(test, reference, reference_label + 40)
    assert others.tolist() == (expected + 40).tolist(), "labels are any numbers"


@pytest.mark.parametrize("digits", [9, 1], ids=["no ties", "many ties"])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_average_precision_and_f1_are_scikit_learns(digits, share):
    rng = np.random.default_rng(1)
    label = rng.random(101) < share
    cosine = np.clip(rng.normal(0.2 * label, 0.3), -1, 1).round(digits)
    assert average_precision(cosine, label) == pytest.approx(average_precision_score(label, cosine), abs=1e-12)
    found = best_f1(cosine, label)
    every = {threshold: f1_score(label, cosine >= threshold) for threshold in np.unique(cosine)}
    assert found.f1 == pytest.approx(max(every.values()), abs=1e-12)
    assert every[found.cosine] == pytest.approx(found.f1, abs=1e-12)


def test_a_tied_triplet_is_missed():
    assert triplet_hits(np.array([0.5, 0.5, 0.2]), np.array([0.4, 0.5, 0.3])).tolist() == [1, 0, 0]
