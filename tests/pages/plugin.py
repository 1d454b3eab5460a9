"""The pages as tests: pytest collects each code block of README.md, docs/ and deploy/README.md (tests/pages)."""

import pytest
from sybil.integration.pytest import SybilItem

from tests.conftest import graphs, shared_folder  # noqa: F401 - pages lie outside tests/
from tests.pages.running import pages
from tests.pipeline.finished import make_for_pages, make_once

pytest_collect_file = pages.pytest()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark pages as slow: a block takes seconds to minutes.

    Blocks that are not run are skipped here, so that nobody makes a clone for a page that runs none.
    """
    for item in (item for item in items if isinstance(item, SybilItem)):
        item.add_marker(pytest.mark.slow)
        block = item.example.parsed
        if block.reason or block.run_by:
            item.add_marker(pytest.mark.skip(reason=block.reason or f"run by {block.run_by}"))


@pytest.fixture(scope="session")
def clone_for_pages(shared_folder, graphs):  # noqa: F811 - graphs first: commands remember what they trace
    """A clone after ``dvc repro`` with small files; copy it before you change anything."""
    return make_once(shared_folder / "for-pages", make_for_pages)
