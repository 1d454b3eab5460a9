"""The models of an adaptation: how each is made, measured and exported, a run of its ledger."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.adapt.ladder import BARE, FULL, HEAD, HEADED, QUERY_MAP, Ladder
from cse.adapt.made import ALL_ROWS, LEDGER, PICKING
from cse.adapt.pace import time_training
from cse.adapt.plan import Pace
from cse.artifact import is_whole
from cse.data.store import PreparedData
from cse.data.suite import open_suite
from cse.data.tasks.kinds import HELD_OUT, LabelledTexts, kind_of
from cse.data.tasks.parts import dev_part, part_for_test
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_keys, value_of
from cse.evaluation.score import MEASURES, score_dev
from cse.files import write_json
from cse.ledger import Ledger, RunRecord
from cse.outputs import Kind, publish_file, publish_folder
from cse.runtime.uses import QUERY
from cse.settings import PARAMS_FILE, Settings
from cse.settings.document import write_values
from cse.settings.load import flatten, settings_with
from cse.stages.evaluate import evaluate_models, record_folder, save_record
from cse.stages.export import export_stage
from cse.stages.open_model import BackboneOf, open_model
from cse.stages.place import Place, link_rows, make_rows
from cse.training import Folders
from cse.training.fit_post import FIT_BATCH, put_behind

RATE = "train.learning_rate"
_NO_PROMPT = {"prompt.kind": "none", "prompt.length": 0}
_UNTRAINED = {**_NO_PROMPT, "train.parameters": "none", "pooler.kind": None, "pooler.mlp": "none"}
WITH_HEAD = {"post.kind": "linear"}
ON_ALL_ROWS = {"data.dev": "none", "train.dev_measure": None}
_BOTH_SIDES = {"prompt.side": "both", "post.kind": "none"}  # the bare backbone beside adapted queries
_OF = {
    BARE: _UNTRAINED,
    HEAD: _UNTRAINED | WITH_HEAD,
    QUERY_MAP: _UNTRAINED,
    FULL: {**_NO_PROMPT, "train.parameters": "full"},
}


@dataclass(frozen=True)
class Models:
    """What makes the models of an adaptation; what is on record is not made again.

    Attributes:
        keeps_last: whether trainings keep their last weights; else a part of what chooses picks weights and rates, and
            the rest compares the models.
    """

    settings: Settings
    folder: Path
    ledger: Ledger
    out: Path
    keeps_last: bool = False
    ladder: Ladder = field(default_factory=Ladder)
    made: dict[str, Settings] = field(default_factory=dict)

    @property
    def data(self) -> Folders:
        """The rows."""
        return Folders.below(self.folder)

    @property
    def trained_on(self) -> Folders:
        """The rows as trainings see them: beside what picks weights and rates, and nothing that is measured."""
        return replace(self.data, prepared=self.folder / PICKING)

    @property
    def selects(self) -> bool:
        """Whether a dev score tells good weights from bad ones."""
        comparing = bool(self.settings.objective.over(self.settings.data.more_terms).comparing)
        data = self.data if self.keeps_last else self.trained_on
        return comparing and open_dev(PreparedData(data.prepared)) is not None

    @property
    def seconds(self) -> float:
        """Time that all runs took."""
        return sum(record.seconds for record in map(self.ledger.read, self.ledger.names()) if record is not None)

    @property
    def held_out(self) -> float:
        """Share of the labelled rows that are held out to choose; 0 without such rows."""
        dev = open_dev(PreparedData(self.data.prepared))
        if not isinstance(dev, LabelledTexts) or dev.split != HELD_OUT:
            return 0.0
        return len(dev) / (len(dev) + len(dev.reference))

    def again(self, systems: Iterable[str], values: Mapping[str, Any]) -> Models:
        """Make the models of some systems again, with other rows: those too that chose them; return these."""
        folder = self.folder / ALL_ROWS
        again = Models(settings_with(self.settings, values), folder, Ledger(folder / LEDGER), self.out)
        again.prepare()
        for system in systems:
            for name in self.ladder.rungs[system].models:
                own = settings_with(self.made[name], values)
                below = next((one for one, headed in HEADED.items() if headed == system and one != BARE), None)
                if below is None:
                    again.train(system, own)
                else:
                    again.train(below, settings_with(own, {"post.kind": "none"}))
                    again.fit_head(below, own)
        return again

    def record_of(self, name: str) -> Path:
        """Return the folder of a model's measures."""
        return self.folder / "records" / record_folder(name)

    def settings_of(self, system: str, values: Mapping[str, Any] | None = None) -> Settings:
        """Return the settings of a system, with some values."""
        beside = _BOTH_SIDES if system == BARE and self.settings.prompt.side == QUERY else {}
        return settings_with(self.settings, {**_OF.get(system, {}), **beside, **(values or {})})

    def prepare(self) -> None:
        """Prepare the rows."""
        data = self.data
        self.ledger.run(
            "prepare", partial(make_rows, self.settings, data), makes=[data.prepared, data.mined, data.corrupted]
        )
        self.ledger.run(PICKING, self._set_apart, makes=[self.trained_on.prepared])

    def _set_apart(self) -> None:
        """Make the folder that trainings see."""
        task, picks = open_dev(PreparedData(self.data.prepared)), None
        if task is not None and not self.keeps_last:
            try:
                picks = dev_part(task)
                part_for_test(task)
            except CseError as few:
                click.echo(f"{few}: the last weights are kept, and the first learning rate", err=True)
                picks = None
        with publish_folder(self.trained_on.prepared, Kind.PREPARED_DATA) as folder:
            link_rows(self.data.prepared, folder, picks)

    def _score(self, place: Place) -> float | None:
        """Return the dev score of a model on what picked neither its weights nor its rate; None without a dev task."""
        task = open_dev(PreparedData(self.data.prepared))
        if task is None:
            return None
        if open_dev(PreparedData(self.trained_on.prepared)) is not None:
            task = part_for_test(task)
        encoder = open_model(self._model(place.folder.name), device=self.settings.evaluation.device, banks={})
        return score_dev(encoder, task, FIT_BATCH, self.settings.train.dev_measure).value

    def _model(self, name: str) -> str | BackboneOf:
        return BackboneOf(self.settings.backbone) if name == BARE else str(self._place(name).checkpoint)

    @property
    def measures(self) -> bool:
        """Whether there is anything to measure a model on."""
        data = open_suite(PreparedData(self.data.prepared))
        return bool(data.own or data.sts)

    def main_measure(self) -> tuple[str, str] | None:
        """Return the user's first task and its main measure, named before training; None without a task."""

        def named() -> list[str]:
            tasks = open_tasks(PreparedData(self.data.prepared), OWN)
            return [tasks[0].name, MEASURES[kind_of(tasks[0])][0]] if tasks else []

        return tuple(self.ledger.run("main measure", named).result) or None

    def pace(self, system: str) -> Pace:
        """Return how fast a system trains here."""
        settings = self.settings_of(system, {RATE: 1e-6})  # nothing that a high rate could spoil
        settings = self._for_training(settings)
        timed = self.ledger.run(f"time {system}", lambda: asdict(time_training(settings, self.trained_on)))
        return Pace(**timed.result)

    def try_rate(self, system: str, settings: Settings) -> RunRecord:
        """Train with a learning rate; the result is the dev score, none if the rate is too high to train with."""
        place = self._trial(system, settings)

        def too_high(error: Exception) -> bool:
            return isinstance(error, CseError) and str(error).startswith(RATE)

        def work() -> float | None:
            self._train(settings, place)
            return value_of(place.dev())

        return self.ledger.run(f"try {place.folder.name}", work, fails=too_high)

    def train(self, system: str, settings: Settings, *, tried: bool = False) -> None:
        """Train a model, or take a trial of the same settings; its result is the dev score."""
        place = self._place(_name(system, settings))

        def work() -> float | None:
            trial = self._trial(system, settings).folder
            if tried and trial.is_dir() and not place.folder.exists():
                place.folder.parent.mkdir(exist_ok=True)
                trial.rename(place.folder)
            if not (tried and is_whole(place.checkpoint) and is_whole(place.metrics)):
                self._train(settings, place)
            return self._score(place)

        self._make(system, settings, work)

    def fit_head(self, system: str, settings: Settings) -> None:
        """Fit a head behind a trained model; the result is the dev score of both together."""
        behind, headed, own = self._place(_name(system, settings)), HEADED[system], settings_with(settings, WITH_HEAD)
        place = self._place(_name(headed, own))

        def work() -> float | None:
            facts = put_behind(
                str(behind.checkpoint),
                own.post,
                prepared=self.trained_on.prepared,
                out=place.checkpoint,
                measure=self._for_training(own).train.dev_measure,
            )
            trained = json.loads(behind.metrics.read_text(encoding="utf-8"))
            kept = {key: value for key, value in trained.items() if key not in dev_keys()}
            with publish_file(place.metrics) as target:
                write_json(target, kept | facts)
            return self._score(place)

        self._make(headed, own, work)

    def measure(self, name: str) -> RunRecord:
        """Measure a model on the user's task and on whatever STS was prepared."""
        out, options = self.record_of(name), self.settings.evaluation
        model = self._model(name)

        def work() -> None:
            data = open_suite(PreparedData(self.data.prepared))
            if not data.own and not data.sts:
                raise CseError("nothing to measure: name a task with --task, or prepare rows that can be held out")
            results = evaluate_models(
                {name: model},
                data,
                measures=("sts", "tasks") if data.sts else ("tasks",),
                device=options.device,
                progress=sys.stderr.isatty(),
            )
            with publish_folder(out, Kind.RECORD) as folder:
                save_record(folder, name, model, results[name], options.device)

        return self.ledger.run(f"measure {name}", work, makes=[out])

    def export(self, name: str) -> None:
        """Make the bundle of a model, and write down its settings."""
        place, bundle = self._place(name), self.out / "bundle"
        # one bundle, whatever an earlier stop chose
        self.ledger.forget(*(f"export {other}" for other in self.made if other != name))
        data, metrics = self.data.prepared, (place.metrics,)
        self.ledger.run(
            f"export {name}",
            lambda: export_stage(self.settings, model=place.checkpoint, prepared=data, metrics=metrics, bundle=bundle),
            makes=[bundle],
        )
        write_values(self.out / PARAMS_FILE, flatten(self.made[name].model_dump(mode="json")))

    def _place(self, name: str) -> Place:
        return Place(self.folder / "runs" / name)

    def _trial(self, system: str, settings: Settings) -> Place:
        return Place(self.folder / "trials" / f"{system}-{settings.train.learning_rate:g}")

    def _train(self, settings: Settings, place: Place) -> None:
        place.train(self._for_training(settings), self.trained_on)

    def _for_training(self, settings: Settings) -> Settings:
        picks = open_dev(PreparedData(self.trained_on.prepared)) is not None
        return settings if picks else settings_with(settings, {"train.dev_measure": None})

    def _make(self, system: str, settings: Settings, work: Callable[[], float | None]) -> None:
        """Make a model unless it is there, and add it to its rung."""
        name = _name(system, settings)
        place = self._place(name)
        record = self.ledger.run(f"train {name}", work, makes=[place.checkpoint, place.metrics])
        self.made[name] = settings
        self.ladder.add(system, name, record.result, record.seconds)


def _name(system: str, settings: Settings) -> str:
    """Return the name of a model: its kind, and the seed if it has one."""
    return system if system in (BARE, HEAD, QUERY_MAP) else f"{system}-{settings.train.seed}"
