from pathlib import Path
from random import Random

import pytest

from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.cli.workspace import write_params
from tests.rows import write_table

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "bird", "red", "small", "old", "house", "rain", "sleeps"]


@pytest.fixture
def place(tiny_folders, tmp_path, monkeypatch) -> Path:
    """A working folder with settings."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / "params.yaml", tiny_folders["bert"])
    return tmp_path


@pytest.fixture
def labelled(place) -> Path:
    """A working folder with settings and seventy labelled texts."""
    random = Random(0)
    rows = [
        (f"{WORDS[n]} {WORDS[n + 3]} {' '.join(random.sample(WORDS, 4))}", f"label {n}")
        for n in range(5) for _ in range(14)
    ]  # fmt: skip
    write_table(place / "labels.csv", ("text", "category"), rows)
    return place
