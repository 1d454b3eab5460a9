"""A bucket that answers some requests with 503, as S3 does when it is busy: the index becomes the same."""

from __future__ import annotations

import threading
from itertools import count

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from cse.runtime.onnx_encoder import OnnxEncoder
from cse.search.index import index_corpus
from cse.search.rows import Choices
from cse.search.table import open_table
from tests.flows.prefect_server import free_port
from tests.rows import write_parquet
from tests.search.corpora import sentences

TEXTS = sentences(35)
EVERY = 3  # request is refused
_SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>'


@pytest.fixture
def refused(bucket, monkeypatch):
    """The paths that the bucket's server refused so far; another server in front of the same bucket refuses them."""
    known, number = [], count(1)
    app = DomainDispatcherApplication(create_backend_app)

    def busy(environ, start_response):
        if next(number) % EVERY:
            return app(environ, start_response)
        known.append(environ["PATH_INFO"])
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_SLOW_DOWN)))])
        return [_SLOW_DOWN]

    server = make_server("127.0.0.1", free_port(), busy, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield known
    server.shutdown()
    thread.join()


@pytest.mark.slow
def test_a_busy_bucket_costs_time_and_no_row(bucket, refused, bundle, tmp_path):
    here = write_parquet(tmp_path / "a.parquet", {"id": [*range(35)], "text": TEXTS}, 8)
    bucket.upload_file(str(here), "texts", "in/a.parquet")
    for corpus, out in (("s3://texts/in", "s3://texts/out"), (str(here), str(tmp_path / "out"))):
        assert index_corpus(corpus, out, str(bundle), Choices(provider="cpu")).documents == 35
    assert any(path.startswith("/texts/in") for path in refused) and any("/out/" in path for path in refused)
    queries = OnnxEncoder(bundle, provider="cpu").encode(TEXTS[:5])
    there, local = (
        [[(hit.id, hit.score) for hit in hits] for hits in open_table(url).search(TEXTS[:5], queries, 5, "hybrid")]
        for url in ("s3://texts/out", str(tmp_path / "out"))
    )
    assert there == local
