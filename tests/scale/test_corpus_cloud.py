"""Corpora and vectors behind URLs, on servers on loopback."""

from __future__ import annotations

import functools
import http.server
import os
import re
import signal
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cse.errors import CseError
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.scale.corpus import pool
from cse.scale.corpus.embed import embed_corpus
from cse.scale.corpus.index import build_table, update_table
from cse.scale.corpus.output import open_vectors
from cse.scale.corpus.pool import PieceActor
from cse.scale.corpus.table import MODES, open_table
from cse.scale.storage import Folder
from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.scale.buckets import bucket  # noqa: F401 - a fixture
from tests.scale.corpora import choices, sentences, shards, write_parquet, write_txt

TEXTS = sentences(35)


@pytest.mark.parametrize("ending", ["txt", "parquet"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_from_bucket_to_bucket(bucket, bundle, tmp_path, ending, workers):  # noqa: F811
    here = tmp_path / f"a.{ending}"
    write_txt(here, TEXTS) if ending == "txt" else write_parquet(here, {"text": TEXTS}, 8)
    corpus, out = f"in-{ending}-{workers}", f"out-{ending}-{workers}"  # moto forgets nothing
    bucket.upload_file(str(here), "texts", f"{corpus}/a.{ending}")

    def embed():
        return embed_corpus(f"s3://texts/{corpus}", f"s3://texts/{out}", str(bundle), choices(), workers=workers)

    done = embed()
    assert (done.rows, done.found, done.shards) == (35, 0, 4)
    embed_corpus(str(here), str(tmp_path / "local"), str(bundle), choices(), workers=0)
    for shard in shards(tmp_path / "local"):
        stored = bucket.get_object(Bucket="texts", Key=f"{out}/{shard.name}")["Body"].read()
        assert stored == shard.read_bytes()
    bucket.delete_object(Bucket="texts", Key=f"{out}/part-000002.parquet")
    again = embed()
    assert (again.rows, again.found) == (35, 25)
    queries = OnnxEncoder(bundle, provider="cpu").encode([TEXTS[3]])
    url = f"s3://texts/{out}"
    with pytest.raises(CseError, match="no index here; build it with `cse index s3://"):
        open_table(url)
    build_table(open_vectors(url))
    for mode in MODES:
        (hits,) = open_table(url).search([TEXTS[3]], queries, 1, mode)
        assert sorted(hits[0].values["text"].split()) == sorted(TEXTS[3].split())
    update_table(url, open_vectors(str(tmp_path / "local")))
    assert len(open_table(url)) == 35, "the same ids"
    embed_corpus(str(here), url, str(bundle), choices(), workers=0, again=True)
    with pytest.raises(CseError, match="no index here"):
        open_table(url)


class Deadly(PieceActor):
    """An actor whose process is killed by texts that name a file, where each death leaves a byte."""

    def run(self, piece, rows):
        for text in rows.texts:
            if text.startswith("/"):
                with Path(text).open("ab") as deaths:
                    deaths.write(b".")
                os.kill(os.getpid(), signal.SIGKILL)
        return super().run(piece, rows)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["bucket", "folder"])
def test_a_piece_that_kills_its_worker_is_given_up_after_five(bucket, bundle, tmp_path, monkeypatch, where):  # noqa: F811
    monkeypatch.setattr(pool, "PieceActor", Deadly)
    deaths = tmp_path / "deaths"
    corpus = write_txt(tmp_path / "a.txt", [*TEXTS[:25], str(deaths), *TEXTS[26:]])
    out = "s3://texts/deadly" if where == "bucket" else str(tmp_path / "out")
    with pytest.raises(CseError) as caught:
        embed_corpus(str(corpus), out, str(bundle), choices(), workers=1)
    line = r"a\.txt:21: the process that embeds the 10 rows from here died 5 times \(out of memory\?\); use fewer"
    assert re.search(line, str(caught.value))
    assert deaths.stat().st_size == 5
    beside = "part-000003.parquet"  # in the same actor at the first death, or not begun
    assert sorted(Folder(out).names() - {".cse-drafts", ".cse-lock", beside}) == [
        "part-000000.parquet", "part-000001.parquet", "plan.json",
    ]  # fmt: skip


def test_no_such_bucket_is_one_line(bucket, bundle):  # noqa: F811
    with pytest.raises((CseError, OSError)) as error:
        embed_corpus("s3://nowhere/in", "s3://texts/vectors", str(bundle), choices(), workers=0)
    assert "nowhere" in str(error.value)


@pytest.fixture
def website(tmp_path):
    """A plain web server, which knows no ranges."""
    (tmp_path / "site").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "site"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path / "site", f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_from_the_web(website, bundle, tmp_path):  # noqa: F811
    folder, url = website
    write_txt(folder / "a.txt", TEXTS)
    embed_corpus(f"{url}/a.txt", str(tmp_path / "vectors"), str(bundle), choices(shard_rows=100), workers=0)
    assert pq.read_table(tmp_path / "vectors/part-000000.parquet")["text"].to_pylist() == TEXTS
    with pytest.raises(CseError, match="the server sends whole files only; copy it here first"):
        embed_corpus(f"{url}/a.txt", str(tmp_path / "pieces"), str(bundle), choices(), workers=0)
    with pytest.raises(CseError, match=r"b\.txt: no such file or folder"):
        embed_corpus(f"{url}/b.txt", str(tmp_path / "x"), str(bundle), choices(), workers=0)
