"""The default settings and the whole default backbone, of few rows; the pages' clone has its first layer alone."""

import pytest

from tests.pipeline.workspace import STAGES, clone, ran


@pytest.mark.slow
def test_repro_with_the_defaults(tmp_path):
    workspace = clone(tmp_path / "clone")
    workspace.set({"data.max_rows": 200})
    workspace.commit()
    assert ran(workspace.dvc("repro")) == list(STAGES)
