"""The command, a tiny bundle and a bucket, for all tests of `cse index` and `cse search`."""

import pytest

from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.runtime.conftest import bundle  # noqa: F401 - a fixture
from tests.search.buckets import bucket  # noqa: F401 - a fixture


@pytest.fixture
def index(cse, monkeypatch):  # noqa: F811
    """`cse index` on this machine's processor."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(corpus, out, model, *options):
        return cse("index", corpus, "--out", out, "--model", model, "--device", "cpu", *options)

    return run
