"""Train and measure the runs of a round, side by side; what is done is not done again."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from cse.data.store import TRAIN_FILE, PreparedData
from cse.data.tasks.kinds import PROXY
from cse.errors import CseError, error_line, one_line
from cse.evaluation.suite import evaluate_suite
from cse.evaluation.tasks.score import dev_measure
from cse.files import fingerprint
from cse.model.checkpoint_config import is_checkpoint, read_config
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import publish_file
from cse.process import only_one
from cse.scale.side_by_side import side_by_side
from cse.settings import Settings
from cse.settings.spaces import settings_with
from cse.stages.corrupt import corrupt_stage
from cse.stages.inputs import files_of_backbone
from cse.stages.mine import mine_stage
from cse.stages.open_backbone import bare_of
from cse.stages.prepare import files_of, prepare_stage
from cse.stages.train import train_stage
from cse.stages.training import Training, groups_of
from cse.study.facts import check_unchanged, facts_of
from cse.study.ledger import ROW_FILE, Row, read_row, write_row, write_table
from cse.study.measures import apart, columns, dev_suite
from cse.study.plan import BARE, Round, Run
from cse.training.observers import CsvLog, Observers, StepRecord
from cse.training.precision import choose_bf16, choose_device
from cse.training.state import RunState
from cse.tune.job import steps_of

_WEIGHTS = ".safetensors"
_TRAINED = "trained.json"  # beside a checkpoint: what its training depended on
_NOT_THE_DATA = ("weight", "terms")  # of data.more: how its rows are trained on


@dataclass(frozen=True)
class Place:
    """Where a study keeps what it makes.

    Attributes:
        folder: of the study.
        captions: folder that may hold CxC's validation captions.
    """

    folder: Path
    captions: Path

    def run(self, round_name: str, name: str) -> Path:
        """Return the folder of a training; that of the bare backbone belongs to no round."""
        return self.folder / "runs" / name if name == BARE else self.folder / "runs" / round_name / name

    def data(self, settings: Settings) -> Path:
        """Return the folder of the rows that these settings train on; settings with the same rows share it."""
        tree = settings.model_dump(mode="json", include={"data", "mine", "backbone", "objective"})
        for source in tree["data"]["more"]:
            for key in _NOT_THE_DATA:
                source.pop(key)
        files = files_of(settings.data) if settings.data.source == "files" else []
        facts = {"data": tree["data"], "mine": tree["mine"], "apart": "dev parts too"}
        if settings.objective.replaced_tokens.corrupts_beforehand or settings.mine.wanted:
            facts |= tree | {"content": files_of_backbone(settings.backbone).content()}
        return self.folder / "data" / fingerprint(facts, files)[:12]


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


class StudyWorker:
    """Trains and measures one run after the other in its own process.

    Args:
        place: of the study.
        round_name, how: the round.
        runs: by name.
        threads: CPU threads to use.
    """

    def __init__(self, place: Place, round_name: str, how: Round, runs: Mapping[str, Run], threads: int) -> None:
        torch.set_num_threads(threads)
        self.place, self.round_name, self.how, self.runs = place, round_name, how, runs

    def run(self, name: str) -> str:
        """Do one run and return why it failed, empty if it did not; an error fails only this run."""
        folder, run = self.place.run(self.round_name, name), self.runs[name]
        started = time.monotonic()
        try:
            row = self._bare(run) if name == BARE else self._train(run, folder, started)
        except (CseError, OSError) as error:
            reason = error_line(error)
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}")[:300]
        else:
            write_row(folder, row)
            return ""
        if name != BARE:
            write_row(
                folder,
                Row(run.setting, run.seed, self.round_name, run.values, facts_of(run, self.place.captions), {}, reason),
            )
        return reason

    def _train(self, run: Run, folder: Path, started: float) -> Row:
        depends = facts_of(run, self.place.captions)  # as it begins: a file may change until it ends
        data = prepare_once(self.place, run.settings)
        settings = self._paced(run.settings, data / "prepared")

        def launch(training: Training) -> RunState:
            observers: list[Any] = [CsvLog(training.folder.path / "plots", training.measure)]
            if self.how.snapshots:
                observers.append(Snapshots(training, folder / "snapshots"))
            return training.run(Observers(observers))

        checkpoint = folder / "checkpoint"
        if not _trained(folder, settings, depends):  # else it was killed, or failed, while it measured
            (folder / _TRAINED).unlink(missing_ok=True)
            train_stage(
                settings,
                prepared=data / "prepared",
                mined=data / "mined",
                corrupted=data / "corrupted",
                checkpoint=checkpoint,
                metrics=folder / "train.json",
                plots=folder / "plots",
                scratch=self.place.folder / "scratch",
                launch=launch,
                tokens=data / "tokens",
            )
            with publish_file(folder / _TRAINED) as target:
                target.write_text(json.dumps(depends, indent=2) + "\n", encoding="utf-8")
        facts, encoder = read_config(checkpoint)["facts"], SentenceEncoder.load(checkpoint)
        trained = facts["parameters"]
        dev = self._measure(encoder, data, settings)
        snapshots = []
        files = {int(file.stem): file for file in (folder / "snapshots").glob(f"*{_WEIGHTS}")}
        for step in sorted(files):
            weights = load_file(files[step])
            with torch.no_grad():
                for name, weight in encoder.named_parameters():
                    if name in weights:
                        weight.copy_(weights[name])
            snapshots.append((step, self._measure(encoder, data, settings)))
        for file in files.values():
            file.unlink()
        return Row(
            run.setting,
            run.seed,
            self.round_name,
            run.values,
            depends,
            dev,
            trained=100 * trained["trained"] / max(trained["backbone"], 1),
            steps=facts["steps"],
            best_step=facts.get("best_step", facts["steps"]),
            seconds=round(time.monotonic() - started, 1),
            snapshots=snapshots,
        )

    def _bare(self, run: Run) -> Row:
        depends = facts_of(run, self.place.captions)
        encoder, data = bare_of(run.settings.backbone).load(), prepare_once(self.place, run.settings)
        return Row(BARE, 0, "", {}, depends, self._measure(encoder, data, run.settings))

    def _paced(self, settings: Settings, prepared: Path) -> Settings:
        """Return settings that evaluate as often as snapshots are wanted."""
        if not self.how.snapshots:
            return settings
        steps = steps_of(settings, len(PreparedData(prepared).train), prepared / TRAIN_FILE, prepared)
        return settings_with(settings, {"train.eval_every": math.ceil(steps / self.how.snapshots)})

    def _measure(self, encoder: SentenceEncoder, data: Path, settings: Settings) -> dict[str, float]:
        """Return the dev scores."""
        encoder, _ = ready(encoder, settings)
        suite = dev_suite(PreparedData(data / "prepared"), self.place.captions)
        found = evaluate_suite(encoder, suite, measures=("cxc", "tasks"), batch_size=settings.evaluation.batch_size)
        measure = dev_measure(suite.own[0], settings.train.dev_measure, "train.dev_measure").removesuffix(PROXY)
        return columns(found.to_dict(), measure)


def prepare_once(place: Place, settings: Settings) -> Path:
    """Return the folder of the rows, prepared by whoever needs them first; none holds a text of a dev or test part."""
    data = place.data(settings)
    data.mkdir(parents=True, exist_ok=True)
    with FileLock(data / "lock"):
        if not (data / "done").is_file():
            prepare_stage(settings, prepared=data / "prepared", metrics=data / "prepare.json", held_out=apart)
            mine_stage(settings, prepared=data / "prepared", mined=data / "mined")
            corrupt_stage(settings, prepared=data / "prepared", corrupted=data / "corrupted")
            (data / "done").touch()
    return data


def run_round(place: Place, round_name: str, how: Round, runs: Sequence[Run], *, at_once: int | None) -> int:
    """Do what is not done yet of a round, and return how many runs failed.

    A killed round goes on where it was: ended runs are kept, the one that was training resumes. Runs that failed are
    tried again.

    Args:
        place: of the study.
        round_name: name of the round.
        how: what it says of all its trainings.
        runs: its trainings.
        at_once: how many to train side by side; None: one for each CPU, or for each GPU if there are any.

    Raises:
        CseError: a setting or a file changed after it was trained, or another process runs this study.
    """
    with only_one(place.folder / "lock", f"{place.folder}: another process is running this study; wait until it ends"):
        every = [Run(BARE, 0, runs[0].settings, {}), *runs]
        todo = {run.name: run for run in every if not _done(place, round_name, run)}
        for name in todo:
            (place.run(round_name, name) / ROW_FILE).unlink(missing_ok=True)  # of a training that failed
        failed = 0
        if todo:
            with tqdm(total=len(todo), unit="run", desc=round_name, disable=not sys.stderr.isatty()) as bar:
                for ended in side_by_side(
                    StudyWorker,
                    lambda threads: (place, round_name, how, todo, threads),
                    list(todo),
                    at_once=at_once,
                    afresh=True,
                ):
                    reason = ended.lost or ended.result
                    failed += bool(reason)
                    write_table(place.folder)
                    bar.update()
                    bar.write(f"{ended.name}: {reason or 'done'}", file=sys.stderr)
    return failed


def ready(encoder: SentenceEncoder, settings: Settings) -> tuple[SentenceEncoder, torch.device]:
    """Return an encoder on its device, in bfloat16 where training is: faster, and scores move by hundredths."""
    device = choose_device(settings.evaluation.device)
    encoder.to(device)
    encoder.precision = "bf16" if choose_bf16(settings.train.precision, device) else "fp32"
    return encoder, device


def _trained(folder: Path, settings: Settings, depends: Mapping[str, Any]) -> bool:
    """Return whether the checkpoint in a folder was trained with these settings, on these files."""
    checkpoint, path = folder / "checkpoint", folder / _TRAINED
    if not path.is_file() or not is_checkpoint(checkpoint):
        return False
    same = json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(depends))
    return same and read_config(checkpoint)["facts"]["settings"] == groups_of(settings)


def _done(place: Place, round_name: str, run: Run) -> bool:
    folder = place.run(round_name, run.name)
    row = read_row(folder)
    if row is None or row.reason:
        return False
    check_unchanged(run, row, place.captions, folder)
    return True
