"""Corpora and vectors behind URLs, on servers on loopback."""

from __future__ import annotations

import pytest

from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus.embed import embed_corpus
from cse.scale.corpus.index import build_table, update_table
from cse.scale.corpus.output import open_vectors
from cse.scale.corpus.table import MODES, open_table
from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.scale.buckets import bucket  # noqa: F401 - a fixture
from tests.scale.corpora import choices, sentences, shards, write_parquet

TEXTS = sentences(35)


def test_from_bucket_to_bucket(bucket, bundle, tmp_path):  # noqa: F811
    here, out = write_parquet(tmp_path / "a.parquet", {"id": [*range(35)], "text": TEXTS}, 8), "out"
    bucket.upload_file(str(here), "texts", "in/a.parquet")

    def embed():
        return embed_corpus("s3://texts/in", f"s3://texts/{out}", str(bundle), choices(id_column="id"), workers=0)

    done = embed()
    assert (done.rows, done.found, done.shards) == (35, 0, 4)
    embed_corpus(str(here), str(tmp_path / "local"), str(bundle), choices(id_column="id"), workers=0)
    for shard in shards(tmp_path / "local"):
        stored = bucket.get_object(Bucket="texts", Key=f"{out}/{shard.name}")["Body"].read()
        assert stored == shard.read_bytes()
    bucket.delete_object(Bucket="texts", Key=f"{out}/part-000002.parquet")
    again = embed()
    assert (again.rows, again.found) == (35, 25)
    queries = OnnxEncoder(bundle, provider="cpu").encode([TEXTS[10]])
    url = f"s3://texts/{out}"
    with pytest.raises(CseError, match="no index here; build it with `cse index s3://"):
        open_table(url)
    build_table(open_vectors(url))
    for mode in MODES:
        (hits,) = open_table(url).search([TEXTS[10]], queries, 1, mode)
        assert sorted(hits[0].values["text"].split()) == sorted(TEXTS[10].split())
    later = write_parquet(tmp_path / "b.parquet", {"id": [34, 35], "text": ["the tram is late", "no"]}, 8)
    embed_corpus(str(later), str(tmp_path / "later"), str(bundle), choices(id_column="id"), workers=0)
    update_table(url, open_vectors(str(tmp_path / "later")))
    assert len(open_table(url)) == 36
    (hits,) = open_table(url).search(["tram"], None, 1, "words")
    assert (hits[0].id, hits[0].values["text"]) == (34, "the tram is late")
    embed_corpus(str(here), url, str(bundle), choices(id_column="id"), workers=0, again=True)
    with pytest.raises(CseError, match="no index here"):
        open_table(url)


def test_no_such_bucket_is_one_line(bucket, bundle):  # noqa: F811
    with pytest.raises((CseError, OSError)) as error:
        embed_corpus("s3://nowhere/in", "s3://texts/vectors", str(bundle), choices(), workers=0)
    assert "nowhere" in str(error.value)
