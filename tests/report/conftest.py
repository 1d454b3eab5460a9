from pathlib import Path

import pytest

from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.report.made_up import BARE, make_record, trained


@pytest.fixture(scope="session")
def records(tmp_path_factory) -> Path:
    """A bare backbone, a system with three seeds, and one with other settings; do not change it."""
    folder = tmp_path_factory.mktemp("records")
    make_record(folder, "backbone", BARE)
    for seed in (42, 43, 44):
        make_record(folder / "runs", f"prompts-{seed}", trained(seed), seed=seed)
    make_record(folder / "runs", "longer", trained(42, prompt__length=20), seed=7)
    return folder
