"""The pages as tests: pytest collects each code block of README.md, docs/ and deploy/README.md (tests/pages)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sybil.integration.pytest import SybilItem

from tests.pages.sybils import pages
from tests.pipeline.finished import make_default, make_for_pages, make_once

pytest_collect_file = pages.pytest()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark pages as slow: one takes seconds to minutes."""
    for item in items:
        if isinstance(item, SybilItem):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory, worker_id) -> Path:
    """A folder that all processes of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def finished_clone(shared_folder):
    """A clone after ``dvc repro`` with the default backbone and few rows; copy it before you change anything."""
    return make_once(shared_folder / "finished", make_default)


@pytest.fixture(scope="session")
def clone_for_pages(shared_folder, finished_clone):
    """A clone after ``dvc repro`` with small files; copy it before you change anything."""
    return make_once(shared_folder / "for-pages", lambda folder: make_for_pages(folder, finished_clone))
