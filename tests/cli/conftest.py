import io
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cse.cli import main
from cse.stages.common import DEBUG_VARIABLE
from tests.cli.workspace import Outcome, work, write_params, write_prepared

Run = Callable[..., Outcome]


class _Stdin(io.BytesIO):
    name = "<stdin>"


@pytest.fixture
def cse(monkeypatch, capsys) -> Run:
    """Run the command line in this process: ``cse("encode", "model", stdin=b"...")``."""
    monkeypatch.setenv(DEBUG_VARIABLE, "")
    # a server's lines go to its own stderr, closed with the test
    for logger in map(logging.getLogger, ("cse", "uvicorn")):
        monkeypatch.setattr(logger, "handlers", [*logger.handlers])
        monkeypatch.setattr(logger, "propagate", logger.propagate)

    def run(*args, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["cse", *map(str, args)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(_Stdin(stdin), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Outcome(left.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def trained(tiny_folders, tmp_path_factory) -> Path:
    """A project folder after ``cse train`` and ``cse export``; do not change it."""
    folder = tmp_path_factory.mktemp("project")
    write_prepared(folder / "data/prepared")
    write_params(folder / "params.yaml", tiny_folders["bert"])
    work(folder, ["train"], ["export"])
    return folder


@pytest.fixture(scope="module")
def made(trained) -> Path:
    """What a module's tests copy; modules that need more than the trained project have their own."""
    return trained


@pytest.fixture
def project(made, tmp_path, monkeypatch) -> Path:
    """A copy of the module's project, as the working folder."""
    folder = Path(shutil.copytree(made, tmp_path / "project"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """A working folder with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
