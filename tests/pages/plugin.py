"""The pages as tests: pytest collects each code block of README.md, docs/ and deploy/README.md (tests/pages)."""

from __future__ import annotations

import pytest
from sybil.integration.pytest import SybilItem

from tests.conftest import finished_clone, shared_folder  # noqa: F401 - pages lie outside tests/
from tests.pages.sybils import pages
from tests.pipeline.finished import make_for_pages, make_once

pytest_collect_file = pages.pytest()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark pages as slow: one takes seconds to minutes."""
    for item in items:
        if isinstance(item, SybilItem):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def clone_for_pages(shared_folder, finished_clone):  # noqa: F811
    """A clone after ``dvc repro`` with small files; copy it before you change anything."""
    return make_once(shared_folder / "for-pages", lambda folder: make_for_pages(folder, finished_clone))
