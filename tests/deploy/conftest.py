"""A tiny bundle and a tiny bank, each behind a running server."""

from pathlib import Path

import pytest

from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.deploy.servers import serving
from tests.export.banks import make_bank, make_encoders
from tests.runtime.conftest import make_tokenizer, write_bundle


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory) -> Path:
    """Eight numbers, six tokens, twelve words; the word "bad" gives an infinite vector."""
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(length=128)  # as all-MiniLM-L6-v2's does; nothing of it may reach the model
    tokenizer.enable_truncation(128)
    return write_bundle(tmp_path_factory.mktemp("served") / "small", tokenizer)


@pytest.fixture(scope="session")
def small_bank(tiny_folders, empty_banks, tmp_path_factory) -> Path:
    encoders = make_encoders(tiny_folders["bert"])
    return make_bank(tmp_path_factory.mktemp("served") / "bank", empty_banks("bert"), encoders)


@pytest.fixture(scope="package")
def server(small_bundle, tmp_path_factory):
    with serving(small_bundle, "--threads", 2, log=tmp_path_factory.mktemp("log") / "bundle") as found:
        yield found


@pytest.fixture(scope="package")
def bank_server(small_bank, tmp_path_factory):
    with serving(small_bank, "--threads", 2, log=tmp_path_factory.mktemp("log") / "bank") as found:
        yield found
