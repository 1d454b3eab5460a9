"""The benchmark of query sides on a collection of a few documents."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.queries import BARE, measure, parse, stand_ins, with_judged
from cse.evaluation.retrieval import NDCG, WITH_WORDS
from tests.data.tasks.files import write_beir
from tests.tiny import WORDS


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(3)

    def text(words: int) -> str:
        return " ".join(rng.choice(WORDS[5:], words))

    documents = [{"_id": f"d{n}", "title": text(2), "text": f"{text(5)}. {text(6)}."} for n in range(12)]
    queries = [{"_id": f"q{n}", "text": text(4)} for n in range(8)]
    qrels = [(f"q{n}", f"d{n}", 1) for n in range(8)]
    return write_beir(tmp_path / "tiny", corpus=documents, queries=queries, test=qrels)


def test_every_query_side_is_measured_beside_the_bare_backbone(collection, tiny_folders, monkeypatch):
    monkeypatch.setattr("cse.training.fit_post._LEAST", 100)
    more = ["--backbone", str(tiny_folders["bert"])]
    found = measure(parse([str(collection), "--seeds", "2", "--splits", "2", *more]))
    of = found["figures"]["tiny"]
    assert len(of[BARE]) == 1 and len(of["map"]) == len(of["half, map with judged queries"]) == 2
    assert {*of[BARE][0]} == {NDCG, WITH_WORDS}
    table = found["table"]
    assert f"tiny, {BARE}" in table and "tiny, map, no words" in table and "95 % interval" in table
    assert of["map"] != of[BARE] * 2, "a map changes the ranking"


def test_judged_pairs_are_labels_of_the_same_documents(collection):
    pairs = stand_ins(collection, 5)
    judged = with_judged(pairs, ["a query"], [pairs.documents[3]])
    assert judged.documents == pairs.documents
    assert (judged.place[-1], judged.stands_in[-1], judged.source[-1]) == (3, False, 1)
    assert judged.stands_in[:-1].all()
