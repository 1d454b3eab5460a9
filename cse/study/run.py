"""Train and measure the runs of a round, side by side; what is done is not done again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

from cse.bench.data import DataFolders
from cse.bench.ledger import RUN, Ledger
from cse.bench.pacing import evaluating
from cse.bench.place import Place
from cse.bench.worker import work_through
from cse.data.store import PreparedData
from cse.data.tasks.kinds import PROXY
from cse.data.tasks.parts import apart
from cse.evaluation.score import dev_measure
from cse.evaluation.suite import evaluate_suite
from cse.files import fingerprint
from cse.model.checkpoint import read_config
from cse.model.sentence_encoder import SentenceEncoder
from cse.process import only_one
from cse.settings import Settings
from cse.stages.prepare import files_of
from cse.study.facts import facts_of
from cse.study.measures import columns, dev_suite
from cse.study.plan import BARE, Round, Run
from cse.study.table import RECORD, write_table
from cse.training import training_code
from cse.training.encoder import bare_of, choose_bf16, choose_device
from cse.training.observers import Observer
from cse.training.ready import Training, depends_on

_WEIGHTS = ".safetensors"
_NOT_THE_DATA = ("weight", "terms")  # of data.more: how its rows are trained on


@dataclass(frozen=True)
class Folders:
    """Where a study keeps what it makes.

    Attributes:
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
            facts |= tree | depends_on(settings)
        else:
            facts |= {"the code": fingerprint({}, training_code())}
        return DataFolders.below(self.folder / "data" / fingerprint(facts, files)[:12], tokens=True)


@dataclass
class Snapshots(Observer):
    """Keeps the weights of every evaluation of a training.

    Attributes:
        folder: to write into, one file per evaluation, named by its step.
    """

    training: Training
    folder: Path

    def evaluated(self, step: int, score: float, best: bool) -> None:
        """Write the weights that were scored."""
        self.folder.mkdir(parents=True, exist_ok=True)
        weights = self.training.encoder.trainable().items()
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in weights}, self.folder / f"{step}{_WEIGHTS}"
        )


@dataclass(frozen=True)
class RoundRuns:
    """The runs of a round: each is trained and measured in the process of a worker."""

    folders: Folders
    round_name: str
    how: Round
    runs: Mapping[str, Run]

    def do(self, name: str) -> str:
        """Do one run, and return why it failed; that is on record too, unless it is the bare backbone's."""
        run, place = self.runs[name], self.folders.run(self.round_name, name)
        depends = facts_of(run, self.round_name, self.folders.captions)  # as it begins: a file may change until it ends
        self._take_over(name, place, depends)
        ended = Ledger(place.folder).run(
            RUN,
            lambda: self._bare(run) if name == BARE else self._train(run, place, depends),
            of=depends,
            fails=lambda error: name != BARE,
        )
        return ended.reason

    def _take_over(self, name: str, place: Place, depends: Mapping[str, Any]) -> None:
        """Copy a training that another round already did with the same settings, seed and files."""
        if name == BARE or self.how.snapshots or Ledger(place.folder).read(RUN) is not None:
            return
        left_behind = shutil.ignore_patterns(f"{RUN}.json", RECORD)  # the record comes last, test scores not at all
        for folder in sorted((self.folders.folder / "runs").glob(f"*/{name}")):
            record = Ledger(folder).read(RUN)
            if record is None or record.reason or record.result["snapshots"]:
                continue
            if record.changed({**depends, "round": record.of["round"]}) is None:
                shutil.copytree(folder, place.folder, ignore=left_behind, dirs_exist_ok=True)
                Ledger(place.folder).write(RUN, replace(record, of=depends))
                return

    def _train(self, run: Run, place: Place, depends: Mapping[str, Any]) -> dict[str, Any]:
        data = prepare_once(self.folders, run.settings)
        settings = evaluating(run.settings, data, self.how.snapshots) if self.how.snapshots else run.settings
        kept = place.folder / "snapshots"

        def train() -> None:
            place.train(
                settings,
                data,
                scratch=self.folders.folder / "scratch",
                watch=lambda training: [Snapshots(training, kept)] if self.how.snapshots else [],
            )

        # on record by itself: a run that was killed, or failed, while it measured is not trained again
        paced = {**depends, "train.eval_every": settings.train.eval_every}
        Ledger(place.folder).run("trained", train, of=paced, makes=[place.checkpoint])
        facts, encoder = read_config(place.checkpoint)["facts"], SentenceEncoder.load(place.checkpoint)
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
        counts, steps = facts["parameters"], facts.get("steps", 0)  # none if nothing is trained
        return {
            "dev": dev,
            "trained": 100 * counts["trained"] / max(counts["backbone"], 1),
            "steps": steps,
            "best_step": facts.get("best_step", steps),
            "snapshots": snapshots,
        }

    def _bare(self, run: Run) -> dict[str, Any]:
        encoder, data = bare_of(run.settings.backbone), prepare_once(self.folders, run.settings)
        return {"dev": self._measure(encoder, data, run.settings)}

    def _measure(self, encoder: SentenceEncoder, data: DataFolders, settings: Settings) -> dict[str, float]:
        """Return the dev scores."""
        encoder, _ = ready(encoder, settings)
        suite = dev_suite(PreparedData(data.prepared), self.folders.captions)
        found = evaluate_suite(encoder, suite, measures=("cxc", "tasks"))
        measure = dev_measure(suite.own[0], settings.train.dev_measure, "train.dev_measure").removesuffix(PROXY)
        return columns(found.to_dict(), measure)


def prepare_once(folders: Folders, settings: Settings) -> DataFolders:
    """Return the folders of the rows, made by whoever needs them first; none holds a text of a dev or test part."""
    data = folders.data(settings)
    shared = data.prepared.parent
    shared.mkdir(parents=True, exist_ok=True)
    with FileLock(shared / "lock"):
        ledger = Ledger(shared, f"delete {shared}")
        ledger.run("prepared rows", lambda: data.prepare(settings, held_out=apart), makes=[data.prepared])
    return data


def run_round(folders: Folders, round_name: str, how: Round, runs: Sequence[Run], *, at_once: int | None) -> int:
    """Do what is not done yet of a round, and return how many runs failed.

    A killed round goes on where it was: ended runs are kept, the one that was training resumes. Runs that failed are
    tried again.

    Args:
        at_once: how many to train side by side; None: one for each CPU, or for each GPU if there are any.
    """
    study = folders.folder
    with only_one(study / "lock", f"{study}: another process is running this study; wait until it ends"):
        every = [Run(BARE, 0, runs[0].settings), *runs]
        todo = {run.name: run for run in every if not _done(folders, round_name, run)}
        for name in todo:
            Ledger(folders.run(round_name, name).folder).forget(RUN)  # of a training that failed
        failed = 0
        do = RoundRuns(folders, round_name, how, todo).do
        for _, reason in work_through(do, list(todo), at_once=at_once, unit="run", afresh=True):
            failed += bool(reason)
            write_table(study)
    return failed


def ready(encoder: SentenceEncoder, settings: Settings) -> tuple[SentenceEncoder, torch.device]:
    """Return an encoder on its device, in bfloat16 where training is: faster, and scores move by hundredths."""
    device = choose_device(settings.evaluation.device)
    encoder.to(device)
    encoder.precision = "bf16" if choose_bf16(settings.train.precision, device) else "fp32"
    return encoder, device


def _done(folders: Folders, round_name: str, run: Run) -> bool:
    """Return whether a run is on record and did not fail."""
    folder = folders.run(round_name, run.name).folder
    record = Ledger(folder).read(RUN)
    if record is None or record.reason:
        return False
    what = "the bare backbone" if run.setting == BARE else f"setting {run.setting}"
    otherwise = f"give the study another --out or the setting another name, or delete {folder}"
    Ledger(folder).check(RUN, facts_of(run, round_name, folders.captions), what, otherwise)
    return True
