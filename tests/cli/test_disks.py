"""Every command that writes, on a full and on a read-only disk: a one-line error, and existing files survive."""

import shutil
from pathlib import Path

import pytest

from tests.cli.workspace import contents, full_disk, read_only, work
from tests.tiny import WORDS

SMALL = ("-s", "data.max_rows=200", "-s", "data.drop=[duplicates]")
# what it writes, where it is named; bytes that a file may have on the full disk
COMMANDS = {
    "prepare": (("prepare", *SMALL), "data/prepared", 4000),
    "train": (("train", "-s", "train.seed=7"), ".cse", 2000),
    "post": (("post", "data/checkpoint", "--kind", "whitening", "--out", "data/post"), "data/post", 2000),
    "records": (("evaluate", "x=data/checkpoint", "--out", "records"), "records/x", 500),
    "export": (("export",), "data/bundle", 100_000),
    "other form": (("export", "--format", "sentence-transformers", "--out", "data/other"), "data/other", 30_000),
    "bank create": (("bank", "create", "bank", "data/checkpoint"), "bank", 100_000),
    "bank add": (("bank", "add", "bank", "data/checkpoint", "--name", "x"), "bank", 500),
    "encode": (("encode", "data/bundle", "lines.txt", "--out", "vectors.npy"), "vectors.npy", 200),
    "index": (("index", "lines.txt", "--out", "vectors"), "vectors", 500),
    "report": (("report", "records", "--out", "data/report"), "data/report", 20_000),
    "preset": (("preset", "use", "promcse-eh-minilm"), "params.yaml", 50),
}


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory) -> Path:
    """A project in which every command has run; do not change it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "project"))
    (folder / "lines.txt").write_text("".join(f"{' '.join(WORDS[i : i + 4])}\n" for i in range(30)))
    (folder / "vectors.npy").write_bytes(b"\x93NUMPY older")
    work(folder, *(COMMANDS[name][0] for name in ("records", "post", "bank create", "index")))
    return folder


@pytest.mark.parametrize("fault", ["full", "read-only"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_takes_no_more(cse, project, name, fault, request):
    command, where, file_bytes = COMMANDS[name]
    if fault == "full" and name == "export":
        request.getfixturevalue("traced_anew")
    if fault == "full" and name == "index":
        shutil.rmtree(project / "vectors")
    before = contents(project)
    with full_disk(file_bytes) if fault == "full" else read_only(project):
        done = cse(*command)
    assert done.code == 2, done.err
    line = done.err.splitlines()[-1]
    says = {"full": "no space left while writing ", "read-only": "Permission denied: "}
    assert line.startswith(f"error: {says[fault]}") and where in line and "Traceback" not in done.err
    assert ".cse-tmp-" not in line, "a name that nobody gave"
    after = contents(project)
    assert [path for path, content in before.items() if after.get(path) != content] == []
    drafts = (".*.cse-tmp-*", ".*.cse-old-*", ".cse-drafts/*-*")
    assert [path for pattern in drafts for path in project.rglob(pattern)] == []


def test_a_line_commands_no_terminal(cse, empty):
    assert not {*"\x1b\u202e"} & {*cse("prepare", "-p", "\x1b[2Jparams\u202e.yaml").refused()}
