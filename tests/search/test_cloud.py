"""Corpora and tables behind URLs, on servers on loopback."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.index import index_corpus
from cse.search.rows import Choices, Maker
from cse.search.table import MODES, open_table
from tests.rows import write_parquet
from tests.search.corpora import sentences

TEXTS = sentences(35)


def test_from_bucket_to_bucket(bucket, bundle, tmp_path, monkeypatch):
    here = write_parquet(tmp_path / "a.parquet", {"id": [*range(35)], "text": TEXTS}, 8)
    bucket.upload_file(str(here), "texts", "in/a.parquet")
    url = "s3://texts/out"

    def index(**choices):
        return index_corpus("s3://texts/in", url, str(bundle), Choices(provider="cpu", **choices))

    with pytest.raises(CseError, match="no index here; make one with `cse index TEXTS --out s3://"):
        open_table(url)
    assert index().documents == 35
    queries = OnnxEncoder(bundle, provider="cpu").encode([TEXTS[10]])
    for mode in MODES:
        (hits,) = open_table(url).search([TEXTS[10]], queries, 1, mode)
        assert sorted(hits[0].text.split()) == sorted(TEXTS[10].split())
    later = write_parquet(tmp_path / "b.parquet", {"id": [34, 35], "text": ["the tram is late", "no"]}, 8)
    bucket.upload_file(str(later), "texts", "in/b.parquet")
    with pytest.raises(CseError, match="id 34 occurs twice"):
        index()
    bucket.delete_object(Bucket="texts", Key="in/a.parquet")
    done = index(changes=True)
    assert (done.documents, done.new, done.changed, done.gone) == (36, 2, 1, 0)
    (hits,) = open_table(url).search(["tram"], None, 1, "words")
    assert (hits[0].id, hits[0].text) == (34, "the tram is late")
    monkeypatch.setattr(Maker, "embed", None)
    assert index().gone == 34
    assert len(open_table(url)) == 2
