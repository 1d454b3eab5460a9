"""A project folder with a tiny backbone and prepared rows, and a sweep's job on it."""

import pytest

from cse.settings import load_settings
from cse.tune.trial import Job, share_data
from tests.cli.workspace import write_params, write_prepared


@pytest.fixture
def folder(tiny_folders, tmp_path):
    write_prepared(tmp_path / "data/prepared", rows=64)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    return tmp_path


@pytest.fixture
def rows(folder):
    return folder / "data/prepared"


@pytest.fixture
def make_job(folder, rows):
    def make(**values):
        settings = load_settings(folder / "params.yaml", {"train.eval_every": 4} | values)
        job = Job(settings=settings, folder=folder / "sweep", evaluations=None, ranges=())
        share_data(rows, job.data)
        return job

    return make
