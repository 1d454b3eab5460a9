"""`cse adapt --again` deletes an earlier adaptation, every file of it, and nothing of the user's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cse.adapt.made import open_ledger
from cse.errors import CseError
from cse.ledger import Ledger
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.settings.load import settings_with
from tests.cli.workspace import contents

FOLDERS = {
    "prepared": Kind.PREPARED_DATA,
    "mined": Kind.MINED_ROWS,
    "bundle": Kind.BUNDLE,
    "records/backbone": Kind.RECORD,
    "records/prompts-42": Kind.RECORD,
    "runs/prompts-42/checkpoint": Kind.CHECKPOINT,
    "runs/prompts-42/plots": Kind.PLOTS,
    "runs/full-42/checkpoint": Kind.CHECKPOINT,
    "trials/prompts-0.1/checkpoint": Kind.CHECKPOINT,
    "trials/full-5e-05/plots": Kind.PLOTS,
}


@pytest.fixture
def out(tmp_path) -> Path:
    """The folder of an adaptation, with what a killed writer left."""
    folder = tmp_path / "out"
    ledger = open_ledger(folder, Settings(), {}, again=False)
    ledger.run("prepare", lambda: None)
    ledger.run("plan", lambda: {"seeds": 2, "rates": {"prompts": [0.1], "full": [5e-5]}})
    for name, kind in FOLDERS.items():
        with publish_folder(folder / name, kind) as draft:
            (draft / "part.bin").write_bytes(b"ours")
    for name in ("prepare.json", "params.yaml", "summary.txt", "runs/prompts-42/train.json"):
        (folder / name).write_text("{}")
    left = folder / "runs/prompts-43/.checkpoint.cse-tmp-host-1-0"
    left.mkdir(parents=True)
    (left / "half.bin").write_bytes(b"ours")
    return folder


def again(out: Path) -> Ledger:
    return open_ledger(out, settings_with(Settings(), {"train.seed": 7}), {}, again=True)


def test_all_that_an_adaptation_made_goes(out):
    assert again(out).names() == ["adaptation"]
    assert sorted(path.name for path in out.rglob("*")) == ["adaptation.json", "ledger"]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "notes/one.txt",
        "ledger/notes.json",
        "runs/notes.txt",
        "runs/my-own-experiment/results.csv",
        "runs/prompts-42/notes.txt",
        "runs/prompts-42/checkpoint/notes.txt",
        "runs/prompts-42/summary.txt",
        "runs/summary.txt",
        "runs/.notes.cse-tmp-host-1-0",
        "trials/notes.txt",
        "records/notes.txt",
        "records/prompts-42/notes.txt",
        "prepared/notes.txt",
        "vectors/mine.kept",
        "documents.jsonl",  # of documents alone; these are triplets
        "runs/prompts-44/train.json",
        "ledger/train prompts-42-keep.json",
    ],
)
def test_a_file_of_the_users_own_keeps_everything(out, name):
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = contents(out)
    with pytest.raises(CseError, match="did not put there"):
        again(out)
    assert contents(out) == before
    assert before[name] == b"mine"


def test_of_documents_their_table_vectors_and_index_go_too(tmp_path):
    searched = settings_with(
        Settings(), {"data.source": "files", "data.view": "documents", "objective.energy_hinge.weight": 0.0}
    )
    open_ledger(tmp_path / "out", searched, {}, again=False)
    for folder in ("vectors", "index"):
        (tmp_path / "out" / folder).mkdir()
    for name in ("documents.jsonl", f"vectors/{'0a' * 16}.kept"):
        (tmp_path / "out" / name).touch()
    open_ledger(tmp_path / "out", settings_with(searched, {"train.seed": 7}), {}, again=True)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["adaptation.json", "ledger"]


def test_an_index_beside_an_adaptation_to_other_rows_is_the_users(out):
    (out / "index").mkdir()
    with pytest.raises(CseError, match="holds index, which `cse adapt` did not put there"):
        again(out)
    assert (out / "index").is_dir()


@pytest.mark.parametrize("name", ["runs/mine", "runs/prompts-42-keep", "runs/prompts-44", "trials/prompts-0.3"])
def test_a_copy_under_a_name_that_is_not_on_record_keeps_everything(out, name):
    shutil.copytree(out / "runs/prompts-42", out / name)
    before = contents(out)
    with pytest.raises(CseError, match=rf"holds {name}, which `cse adapt` did not put there"):
        again(out)
    assert contents(out) == before


@pytest.mark.parametrize("name", ["prepared", "runs", "summary.txt"])
def test_what_a_link_points_to_stays(out, tmp_path, name):
    there = tmp_path / "elsewhere"
    (out / name).rename(there)
    (out / name).symlink_to(there)
    before = contents(there)
    if name == "runs":
        with pytest.raises(CseError, match="holds runs, which"):
            again(out)
    else:
        again(out)
        assert not (out / name).is_symlink()
    assert contents(there) == before
