"""Preparing files in an empty folder, where no path of a clone is there."""

from pathlib import Path

import pytest

from cse.data.prepare import prepare
from cse.data.store import PreparedData
from cse.settings.data import DataSettings


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Prepare a file or folder, a text as a csv file, or the sample, and open the data."""
    monkeypatch.chdir(tmp_path)

    def call(train: Path | str | None = None, out: str = "out", **settings) -> PreparedData:
        if isinstance(train, str) and "\n" in train:
            Path("train.csv").write_text(train, encoding="utf-8")
            train = "train.csv"
        given = {} if train is None else {"source": "files", "train_path": str(train)}
        prepare(DataSettings(**given, **settings), tmp_path / out, progress=False)
        return PreparedData(tmp_path / out)

    return call


def dropped(report: dict) -> dict[str, tuple[int, str]]:
    """Return how many rows of a source were dropped and which first, by reason."""
    return {reason: (one["count"], one["first"]) for reason, one in report["dropped"].items() if one["count"]}
