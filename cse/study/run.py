"""Train and measure the runs of a round, side by side; what is done is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

from cse.bench.data import DataFolders
from cse.bench.pacing import evaluating
from cse.bench.place import Place
from cse.bench.worker import RunWorker, reason_of, work_through
from cse.data.store import PreparedData
from cse.data.tasks.kinds import PROXY
from cse.evaluation.suite import evaluate_suite
from cse.evaluation.tasks.score import dev_measure
from cse.files import fingerprint
from cse.model.checkpoint_config import read_config
from cse.model.named import is_checkpoint
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import publish_file
from cse.process import only_one
from cse.settings import Settings
from cse.stages.inputs import files_of_backbone
from cse.stages.open_backbone import bare_of
from cse.stages.prepare import files_of
from cse.stages.training import Training, groups_of
from cse.study.facts import check_unchanged, facts_of
from cse.study.ledger import ROW_FILE, RunRow, read_row, write_row, write_table
from cse.study.measures import apart, columns, dev_suite
from cse.study.plan import BARE, Round, Run
from cse.training.observers import StepRecord
from cse.training.precision import choose_bf16, choose_device

_WEIGHTS = ".safetensors"
_TRAINED = "trained.json"  # beside a checkpoint: what its training depended on
_NOT_THE_DATA = ("weight", "terms")  # of data.more: how its rows are trained on


@dataclass(frozen=True)
class Folders:
    """Where a study keeps what it makes.

    Attributes:
        folder: of the study.
        captions: folder that may hold CxC's validation captions.
    """

    folder: Path
    captions: Path

    def run(self, round_name: str, name: str) -> Place:
        """Return the place of a training; that of the bare backbone belongs to no round."""
        return Place(self.folder / "runs" / (name if name == BARE else f"{round_name}/{name}"))

    def data(self, settings: Settings) -> DataFolders:
        """Return the folders of the rows that these settings train on; settings with the same rows share them."""
        tree = settings.model_dump(mode="json", include={"data", "mine", "backbone", "objective"})
        for source in tree["data"]["more"]:
            for key in _NOT_THE_DATA:
                source.pop(key)
        files = files_of(settings.data) if settings.data.source == "files" else []
        facts = {"data": tree["data"], "mine": tree["mine"], "apart": "dev parts too"}
        if settings.objective.replaced_tokens.corrupts_beforehand or settings.mine.wanted:
            facts |= tree | {"content": files_of_backbone(settings.backbone).content()}
        return DataFolders.below(self.folder / "data" / fingerprint(facts, files)[:12], tokens=True)


@dataclass
class Snapshots:
    """Keeps the weights of every evaluation of a training.

    Attributes:
        training: that is observed.
        folder: to write into, one file per evaluation, named by its step.
    """

    training: Training
    folder: Path

    def start(self, done: int, steps: int) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def step(self, record: StepRecord) -> None:
        """Do nothing."""

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Write the weights that were scored."""
        weights = self.training.encoder.trainable().items()
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in weights}, self.folder / f"{step}{_WEIGHTS}"
        )

    def close(self) -> None:
        """Do nothing."""


class StudyWorker(RunWorker):
    """Trains and measures one run after the other in its own process.

    Args:
        folders: of the study.
        round_name, how: the round.
        runs: by name.
        threads: CPU threads to use.
    """

    def __init__(self, folders: Folders, round_name: str, how: Round, runs: Mapping[str, Run], threads: int) -> None:
        super().__init__(threads)
        self.folders, self.round_name, self.how, self.runs = folders, round_name, how, runs

    def do(self, name: str) -> None:
        """Do one run, and write its row, of a failure too."""
        place, run = self.folders.run(self.round_name, name), self.runs[name]
        try:
            row = self._bare(run) if name == BARE else self._train(run, place)
        except Exception as error:
            if name != BARE:
                depends = facts_of(run, self.folders.captions)
                failed = RunRow(run.setting, run.seed, self.round_name, run.values, depends, {}, reason_of(error))
                write_row(place.folder, failed)
            raise
        write_row(place.folder, row)

    def _train(self, run: Run, place: Place) -> RunRow:
        started = time.monotonic()
        depends = facts_of(run, self.folders.captions)  # as it begins: a file may change until it ends
        data = prepare_once(self.folders, run.settings)
        settings = evaluating(run.settings, data, self.how.snapshots) if self.how.snapshots else run.settings
        kept = place.folder / "snapshots"
        if not _trained(place, settings, depends):  # else it was killed, or failed, while it measured
            (place.folder / _TRAINED).unlink(missing_ok=True)
            place.train(
                settings,
                data,
                scratch=self.folders.folder / "scratch",
                watch=lambda training: [Snapshots(training, kept)] if self.how.snapshots else [],
            )
            with publish_file(place.folder / _TRAINED) as target:
                target.write_text(json.dumps(depends, indent=2) + "\n", encoding="utf-8")
        facts, encoder = read_config(place.checkpoint)["facts"], SentenceEncoder.load(place.checkpoint)
        trained = facts["parameters"]
        dev = self._measure(encoder, data, settings)
        snapshots = []
        files = {int(file.stem): file for file in kept.glob(f"*{_WEIGHTS}")}
        for step in sorted(files):
            weights = load_file(files[step])
            with torch.no_grad():
                for name, weight in encoder.named_parameters():
                    if name in weights:
                        weight.copy_(weights[name])
            snapshots.append((step, self._measure(encoder, data, settings)))
        for file in files.values():
            file.unlink()
        return RunRow(
            run.setting,
            run.seed,
            self.round_name,
            run.values,
            depends,
            dev,
            trained=100 * trained["trained"] / max(trained["backbone"], 1),
            steps=facts.get("steps", 0),  # none if nothing is trained
            best_step=facts.get("best_step", facts.get("steps", 0)),
            seconds=round(time.monotonic() - started, 1),
            snapshots=snapshots,
        )

    def _bare(self, run: Run) -> RunRow:
        depends = facts_of(run, self.folders.captions)
        encoder, data = bare_of(run.settings.backbone).load(), prepare_once(self.folders, run.settings)
        return RunRow(BARE, 0, "", {}, depends, self._measure(encoder, data, run.settings))

    def _measure(self, encoder: SentenceEncoder, data: DataFolders, settings: Settings) -> dict[str, float]:
        """Return the dev scores."""
        encoder, _ = ready(encoder, settings)
        suite = dev_suite(PreparedData(data.prepared), self.folders.captions)
        found = evaluate_suite(encoder, suite, measures=("cxc", "tasks"), batch_size=settings.evaluation.batch_size)
        measure = dev_measure(suite.own[0], settings.train.dev_measure, "train.dev_measure").removesuffix(PROXY)
        return columns(found.to_dict(), measure)


def prepare_once(folders: Folders, settings: Settings) -> DataFolders:
    """Return the folders of the rows, made by whoever needs them first; none holds a text of a dev or test part."""
    data = folders.data(settings)
    shared = data.prepared.parent
    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared / "lock"):
        if not (shared / "done").is_file():
            data.prepare(settings, held_out=apart)
            (shared / "done").touch()
    return data


def run_round(folders: Folders, round_name: str, how: Round, runs: Sequence[Run], *, at_once: int | None) -> int:
    """Do what is not done yet of a round, and return how many runs failed.

    A killed round goes on where it was: ended runs are kept, the one that was training resumes. Runs that failed are
    tried again.

    Args:
        folders: of the study.
        round_name: name of the round.
        how: what it says of all its trainings.
        runs: its trainings.
        at_once: how many to train side by side; None: one for each CPU, or for each GPU if there are any.

    Raises:
        CseError: a setting or a file changed after it was trained, or another process runs this study.
    """
    study = folders.folder
    with only_one(study / "lock", f"{study}: another process is running this study; wait until it ends"):
        every = [Run(BARE, 0, runs[0].settings, {}), *runs]
        todo = {run.name: run for run in every if not _done(folders, round_name, run)}
        for name in todo:
            (folders.run(round_name, name).folder / ROW_FILE).unlink(missing_ok=True)  # of a training that failed
        failed = 0
        for _, reason in work_through(
            StudyWorker, lambda threads: (folders, round_name, how, todo, threads), list(todo), at_once=at_once,
            unit="run", afresh=True,
        ):  # fmt: skip
            failed += bool(reason)
            write_table(study)
    return failed


def ready(encoder: SentenceEncoder, settings: Settings) -> tuple[SentenceEncoder, torch.device]:
    """Return an encoder on its device, in bfloat16 where training is: faster, and scores move by hundredths."""
    device = choose_device(settings.evaluation.device)
    encoder.to(device)
    encoder.precision = "bf16" if choose_bf16(settings.train.precision, device) else "fp32"
    return encoder, device


def _trained(place: Place, settings: Settings, depends: Mapping[str, Any]) -> bool:
    """Return whether the checkpoint at a place was trained with these settings, on these files."""
    path = place.folder / _TRAINED
    if not path.is_file() or not is_checkpoint(place.checkpoint):
        return False
    same = json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(depends))
    return same and read_config(place.checkpoint)["facts"]["settings"] == groups_of(settings)


def _done(folders: Folders, round_name: str, run: Run) -> bool:
    folder = folders.run(round_name, run.name).folder
    row = read_row(folder)
    if row is None or row.reason:
        return False
    check_unchanged(run, row, folders.captions, folder)
    return True
