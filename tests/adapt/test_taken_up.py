"""An adaptation that was stopped, or lost a part, ends as an undisturbed one does."""

import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from cse import ledger
from cse.adapt import models as making
from cse.adapt.clock import Pace
from cse.adapt.run import open_ledger
from cse.ledger import Ledger
from cse.model.checkpoint import read_config
from cse.outputs import Kind, publish_folder
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.training.observers import CsvLog
from tests.adapt.test_adapt import AS_MANY
from tests.cli.workspace import contents
from tests.parts import refusal
from tests.rows import write_lines
from tests.tiny import make_backbone_folder

MODELS = ("runs/prompts-42/checkpoint", "runs/prompts-43/checkpoint", "bundle", "params.yaml")


def models(out: Path) -> dict[str, bytes]:
    """Every byte of the models, without their manifests of published files."""
    found = {f"{name}/{file}": data for name in MODELS for file, data in contents(out / name).items()}
    assert len(found) >= 8
    return found


def without_times(text: str) -> list[str]:
    """The last lines of the screen without what a part made again adds to the time."""
    return [re.sub(r", \d+ s\b", "", line) for line in text.splitlines()[-9:-1]]


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that only training moves on: ten steps take 2 s. The bundle is a copy, to save time."""
    clock, step = SimpleNamespace(now=0.0), CsvLog.step

    def stepped(self, record) -> None:
        step(self, record)
        clock.now += 1  # a record comes every five steps

    monkeypatch.setattr(CsvLog, "step", stepped)
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(making, "export_stage", copy)
    monkeypatch.setattr(making, "time_training", lambda *_: Pace(0, 0.2, 0))
    return clock


def copy(settings, *, model: Path, bundle: Path, **others) -> None:
    with publish_folder(bundle, Kind.BUNDLE) as draft:
        shutil.copytree(model, draft / "model")


BUDGET = ("--budget", "40s", "-s", "train.max_steps=10")  # ten steps take 2 s: three seeds of one epoch


@pytest.mark.slow
def test_ctrl_c_ends_the_ladder_with_the_best_so_far(cse, labelled, clock, monkeypatch):
    logged = CsvLog.step

    def interrupted(self, record) -> None:
        logged(self, record)
        if clock.now > 3:  # at the end of the second seed
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(CsvLog, "step", interrupted)
        done = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert done.code == 130
    assert re.search("^in the bundle: (head|prompts_head-42) ", done.out, re.MULTILINE), "the second seed is not there"
    assert "labels held out kNN: " in done.out, "it was measured"
    assert "\nnote: stopped before the end; the same command goes on\n" in done.out
    assert (labelled / "out/bundle/model/checkpoint.json").is_file()
    again = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert again.code == 0, again.err
    assert "  prompts with a head: dev " in again.out and "stopped" not in again.out
    (shipped,) = (line.split()[3] for line in again.out.splitlines() if line.startswith("in the bundle: "))
    one, other = (read_config(labelled / f"out/{of}") for of in ("bundle/model", f"runs/{shipped}/checkpoint"))
    assert one["facts"] == other["facts"], "the bundle is what the whole ladder chose"


@pytest.mark.slow
def test_a_part_that_went_missing_is_made_again(cse, labelled, clock):
    done = cse(*AS_MANY, *BUDGET, "--out", "out")
    assert done.code == 0, done.err
    out = labelled / "out"
    whole, said = models(out), without_times(done.out)
    for name in ("prepared", "runs", "records", "bundle"):
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
        done = cse(*AS_MANY, *BUDGET, "--out", "out")
        assert done.code == 0, (name, done.err)
        assert "missing, or not whole; making it again" in done.err and (out / name).exists(), name
        assert without_times(done.out) == said
    (out / "runs/prompts-43/checkpoint/weights.safetensors").unlink()
    assert cse(*AS_MANY, *BUDGET, "--out", "out", "--again").code == 0
    assert models(out) == whole


def opened(out: Path, *, budget: float = 1, again: bool = False, **values) -> Ledger:
    """The ledger of an adaptation to a file of text, with the defaults and some values on top."""
    text = out.with_name("text.txt")
    if not text.exists():
        write_lines(text, ["one line"])
    settings = settings_with(Settings(), {"data.source": "files", "data.train_path": str(text), **values})
    return open_ledger(out, settings, {"budget": budget}, {}, again=again)


@pytest.mark.parametrize("linked", [False, True])
def test_again_renames_the_whole_folder_and_deletes_nothing(tmp_path, capsys, linked):
    out, there = tmp_path / "out", tmp_path / ("elsewhere" if linked else "out")
    there.mkdir()
    if linked:
        out.symlink_to(there)
    for seed in range(3):
        opened(out, again=True, **{"train.seed": seed}).run("prepare", lambda: None)
        opened(out, again=True, **{"train.seed": seed})
        folders = {there, *(tmp_path / f"{there.name}-{number}" for number in range(1, seed + 1))}
        assert {*tmp_path.glob(f"{there.name}*")} == folders, "the same adaptation goes on"
        (out / "thesis.txt").write_text(f"{seed}")
    assert f"the earlier adaptation is in {there}-1 now; delete it when you" in capsys.readouterr().err
    assert [(tmp_path / f"{there.name}-{n}/thesis.txt").read_text() for n in (1, 2)] == ["0", "1"]
    assert Ledger(tmp_path / f"{there.name}-2/ledger").names() == ["adaptation", "prepare"]


def test_what_makes_it_another_adaptation_is_said(tmp_path):
    """Until there is a plan, another budget may be tried."""
    out, backbone = tmp_path / "out", {"backbone.name": str(make_backbone_folder(tmp_path / "bert", "bert", seed=1))}
    opened(out, budget=1, **backbone)
    opened(out, budget=2, **backbone).run("plan", lambda: {"seeds": 3}, of={"budget": 2})
    said = refusal(opened, out, budget=3, **backbone)
    assert "out: budget was 2 and is 3 now; name another folder with --out, or set this " in said
    assert opened(out, budget=2, **backbone).names() == ["adaptation", "plan"]
    said = refusal(opened, out, **backbone, **{"train.seed": 7})
    assert "out: train.seed was 42 and is 7 now; name another folder with --out" in said
    write_lines(tmp_path / "text.txt", ["one line", "another line"])
    assert "out: the text changed since; name another folder" in refusal(opened, out, **backbone)
    write_lines(tmp_path / "text.txt", ["one line"])
    make_backbone_folder(tmp_path / "bert", "bert", seed=2)
    assert "out: the backbone's files changed since; " in refusal(opened, out, **backbone)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe", b"[" * 100_000, b'{"of": {}}'])
def test_what_is_no_adaptation_is_refused_and_stays(tmp_path, again, damaged):
    out = tmp_path / "out"
    (out / "ledger").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    assert refusal(opened, out, again=again).endswith("out: holds something else; name another folder with --out")
    (out / "ledger/adaptation.json").write_bytes(damaged)
    assert re.search(r"adaptation\.json: .*; name another folder with --out$", refusal(opened, out, again=again))
    assert contents(out) == {"notes.txt": b"mine", "ledger/adaptation.json": damaged}
    assert {path.name for path in tmp_path.iterdir()} == {"out", "text.txt"}
