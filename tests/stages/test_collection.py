"""Train a query side: a map against a whole collection, from documents and from judged pairs."""

from functools import partial

import numpy as np
import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.losses.collection import Targets
from cse.model.sentence_encoder import SentenceEncoder
from cse.training.collection import collection_from, teach
from cse.training.fit_post import fit_query_map, put_behind
from tests.parts import refusal
from tests.rows import write_lines, write_table
from tests.stages.training import train_in
from tests.tiny import WORDS

MAP = {"train.parameters": "none", "prompt.kind": "none", "prompt.length": 0, "post.kind": "query_map"}


@pytest.fixture
def prepared(tmp_path, settings):
    """Prepare 30 documents; a file has judged queries of them."""
    rng = np.random.default_rng(4)

    def text(words: int) -> str:
        return " ".join(rng.choice(WORDS, words))

    documents = [(text(3), ". ".join(text(6).capitalize() for _ in range(4)) + ".") for _ in range(30)]
    write_table(tmp_path / "corpus.jsonl", ("title", "text"), documents)
    judged = [(text(4), " ".join(documents[place])) for place in rng.integers(0, 30, 12)]
    write_table(tmp_path / "judged.csv", ("sent0", "sent1"), judged)

    def make(changes: dict | None = None):
        made = settings({
            "data.source": "files", "data.view": "documents", "data.pairs": "stand_ins", "data.dev": "own",
            "data.train_path": str(tmp_path / "corpus.jsonl"), "prompt.side": "query",
        } | (changes or {}))  # fmt: skip
        prepare(made.data, tmp_path / "prepared", progress=False)
        return made

    return make


def train(settings, tmp_path, name="checkpoint"):
    train_in(tmp_path, settings, tmp_path / "prepared", checkpoint=tmp_path / name)
    return SentenceEncoder.load(tmp_path / name)


def test_a_map_learns_the_teachers_ranking_and_leaves_documents_alone(prepared, tmp_path, models, monkeypatch):
    monkeypatch.setattr("cse.training.fit_post._LEAST", 1500)  # steps: random weights take many
    monkeypatch.setattr("cse.training.collection.teach", partial(teach, words=2.0))  # the words rank by another order
    settings = prepared(MAP)
    encoder = train(settings, tmp_path)
    data, bare = PreparedData(tmp_path / "prepared"), SentenceEncoder.load(str(models["bert"]))
    made = collection_from(encoder, [data])
    texts = made.pairs.documents
    np.testing.assert_array_equal(encoder.encode(texts, role="passage"), bare.encode(texts))
    np.testing.assert_array_equal(encoder.encode(texts), bare.encode(texts))

    def agreement(vectors: np.ndarray) -> float:
        """Mean share of the teacher's three best documents among the three nearest."""
        cosine = vectors @ made.documents.T
        cosine[np.arange(len(cosine)), made.pairs.place] = -2
        best = np.take_along_axis(made.targets.place, np.argsort(-made.targets.share, axis=1)[:, :3], axis=1)
        nearest = np.argsort(-cosine, axis=1)[:, :3]
        return float(np.mean([len({*a} & {*b}) / 3 for a, b in zip(best, nearest, strict=True)]))

    queries = made.pairs.queries
    assert agreement(encoder.encode(queries, role="query")) > agreement(bare.encode(queries)) + 0.05


def test_rows_that_were_drawn_are_trained_against_all_documents(prepared, tmp_path, monkeypatch):
    judged = {"name": "judged", "path": str(tmp_path / "judged.csv"), "view": "pairs"}
    monkeypatch.setattr("cse.training.collection.CANDIDATES", 4)
    monkeypatch.setattr("cse.training.collection.MOST_DOCUMENTS", 10)
    settings = prepared(MAP | {"data.max_rows": 7, "data.more": [judged]})
    data = PreparedData(tmp_path / "prepared")
    rows = [*data.train["sent1"].to_pylist(), *data.of("judged").train["sent1"].to_pylist()]
    assert len(data.train) == 7 and len(data.documents) == 30 > len(set(data.train["sent1"].to_pylist()))
    encoder = train(settings, tmp_path)
    made = collection_from(encoder, [data, data.of("judged")])
    assert [made.pairs.documents[place] for place in made.pairs.place] == rows
    assert made.documents.shape[0] == 30 and len(made.targets.sample) == 5
    assert encoder.post is not None, "trained on a sample of them"
    prepared(MAP)
    assert PreparedData(tmp_path / "prepared").documents is None, "the rows hold them"


def test_behind_a_bare_backbone(prepared, tmp_path, models):
    settings = prepared(MAP)
    put_behind(str(models["bert"]), settings.post, prepared=tmp_path / "prepared", out=tmp_path / "behind")
    through_train = train(settings, tmp_path)
    texts = ["the cat", "a dog runs"]
    behind = SentenceEncoder.load(tmp_path / "behind").encode(texts, role="query")
    np.testing.assert_allclose(behind, through_train.encode(texts, role="query"), atol=1e-6)


def test_what_cannot_be_a_collection_is_refused(prepared, data, tmp_path, models):
    encoder, sentences = SentenceEncoder.load(str(models["bert"])), [PreparedData(data["sentences"])]
    sided = SentenceEncoder(encoder.backbone, side="query")
    assert "contains sentences, but queries are trained on pairs" in refusal(collection_from, sided, sentences)
    prepared({"data.train_path": str(write_lines(tmp_path / "one.txt", ["A cat sleeps. A dog runs."]))})
    said = refusal(collection_from, sided, [PreparedData(tmp_path / "prepared")])
    assert "one document is no collection; prepare two or more" in said


def test_a_row_that_comes_often_is_learned_best():
    """Two queries with the same vector and other documents: the map follows the one that comes ten times as often."""
    queries = np.tile(np.array([[1.0, 1.0]], np.float32), (2, 1))
    targets = Targets(np.array([[0], [1]]), np.ones((2, 1), np.float32), np.full(2, -1))

    def mapped(times):
        made = fit_query_map(queries, np.eye(2, dtype=np.float32), targets, temperature=0.5, seed=0, times=times)
        return (queries @ made.matrix.numpy())[0]

    first, second = mapped(np.array([10, 1])), mapped(np.array([1, 10]))
    assert first[0] > first[1] + 0.1 and second[1] > second[0] + 0.1
    assert np.array_equal(mapped(None), mapped(np.array([1, 1])))
