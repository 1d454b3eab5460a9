"""The models of an adaptation: how each is made, measured and exported, a run of its ledger."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from cse.adapt.clock import Pace, time_training
from cse.adapt.ladder import BARE, CLASSIFY, DOCUMENTS, FEW_ROWS, RATE, RUNGS, WITH_HEAD, Ladder
from cse.data.store import PreparedData
from cse.data.suite import open_suite
from cse.data.tasks.kinds import HELD_OUT, LabelledTexts, Retrieval, Task, kind_of
from cse.data.tasks.parts import dev_part, part_for_test
from cse.data.tasks.store import OWN, open_dev, open_tasks
from cse.errors import CseError
from cse.evaluation.dev_facts import dev_keys
from cse.evaluation.retrieval import WITH_WORDS
from cse.evaluation.score import ACCURACY, CLASS_PROBABILITY, MEASURES, SAME_LABEL, score_dev, score_task
from cse.files import write_json
from cse.ledger import Ledger
from cse.outputs import Kind, publish_file, publish_folder
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import PARAMS_FILE, Settings
from cse.settings.document import write_values
from cse.settings.load import flatten, settings_with
from cse.stages.evaluate import evaluate_models, record_folder, save_record
from cse.stages.export import classifier_of, export_stage, labelled_of, names_in
from cse.stages.open_model import BackboneOf, open_model
from cse.stages.place import Place, link_rows
from cse.stages.prepare import prepare_rows, summary
from cse.training.fit_post import FIT_BATCH, put_behind

ALL_ROWS = "all_rows"  # folder of models trained on the rows too that chose them
ON_ALL_ROWS = {"data.dev": "none", "train.dev_measure": None}
_PICKING = "picking"  # folder of the rows beside what picks weights
_SAYS_NOTHING = (
    "dev         0 pairs",
    "evaluation  0 pairs",
    "note  ",
)  # of stage prepare, to a user with a file


def say(line: str) -> None:
    """Say what is done, on standard error."""
    click.echo(line, err=True)


@dataclass(frozen=True)
class Models:
    """What makes the models of an adaptation; what is on record is not made again.

    Attributes:
        use: of labelled texts, ``CLASSIFY`` or ``SEARCH``; None: of other text.
        kept: has the vectors of the bare backbone, where nothing changes those of documents.
    """

    settings: Settings
    folder: Path
    ledger: Ledger
    kind: str
    use: str | None = None
    label_names: Path | None = None
    kept: KeptVectors | None = None
    ladder: Ladder = field(default_factory=Ladder)
    made: dict[str, tuple[Settings, Place]] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        """Folder of the rows."""
        return self.folder / "prepared"

    @property
    def trained_on(self) -> Path:
        """The rows as trainings see them: beside what picks weights, and nothing that is measured."""
        return self.folder / _PICKING

    @property
    def keeps_last(self) -> bool:
        """Whether trainings keep their last weights; else a part of what chooses picks weights."""
        return self.kind in (FEW_ROWS, DOCUMENTS)

    @property
    def rows(self) -> PreparedData:
        """The rows, open."""
        return PreparedData(self.data)

    @property
    def dev(self) -> Task | None:
        """What is held out to choose."""
        task = open_dev(self.rows)
        return None if task is None else self._named(task)

    @property
    def chooses_by(self) -> str | None:
        """Measure on what is held out that chooses among models, by what the user will do; None: its main one."""
        if self.use is not None and isinstance(self.dev, LabelledTexts):
            return CLASS_PROBABILITY if self.use == CLASSIFY else SAME_LABEL
        return self.settings.train.dev_measure

    @property
    def picks(self) -> bool:
        """Whether a part of it picks weights."""
        return open_dev(PreparedData(self.trained_on)) is not None

    @property
    def selects(self) -> bool:
        """Whether a dev score tells good weights from bad ones."""
        comparing = bool(self.settings.objective.over(self.settings.data.more_terms).comparing)
        return comparing and (self.dev is not None if self.keeps_last else self.picks)

    @property
    def held_out(self) -> float:
        """Share of the labelled rows that are held out to choose; 0 without such rows."""
        dev = self.dev
        if not isinstance(dev, LabelledTexts) or dev.split != HELD_OUT:
            return 0.0
        return len(dev) / (len(dev) + len(dev.reference))

    def main_measure(self) -> tuple[str, str] | None:
        """Return the user's first task and the measure of what the user will do with it; None without a task."""
        for task in open_tasks(self.rows, OWN):
            if self.use == CLASSIFY and isinstance(task, LabelledTexts):
                return task.name, ACCURACY
            searched = self.kind == DOCUMENTS and isinstance(task, Retrieval)
            return task.name, WITH_WORDS if searched else MEASURES[kind_of(task)][0]
        return None

    def record_of(self, name: str) -> Path:
        """Return the folder of a model's measures."""
        return self.folder / "records" / record_folder(name)

    def settings_of(self, system: str, values: Mapping[str, Any] | None = None) -> Settings:
        """Return the settings of a rung, with some values."""
        rung = RUNGS[system]
        return settings_with(self.settings, {**rung.trains, **rung.kinds.get(self.kind, {}), **(values or {})})

    # ---- rows -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Prepare the rows."""

        def work() -> None:
            said = summary(prepare_rows(self.settings, self.data, sys.stderr.isatty()))
            say("\n".join(line for line in said.splitlines() if not line.startswith(_SAYS_NOTHING)))

        self.ledger.run("prepare", work, makes=[self.data])
        self.ledger.run(_PICKING, self._set_apart, makes=[self.trained_on])

    def _set_apart(self) -> None:
        """Make the folder that trainings see."""
        task, picks = self.dev, None
        if task is not None and not self.keeps_last:
            try:
                part_for_test(task)
                picks = dev_part(task)
            except CseError as few:
                say(f"{few}: the last weights are kept")
        with publish_folder(self.trained_on, Kind.PREPARED_DATA) as folder:
            link_rows(self.data, folder, picks)

    # ---- trainings --------------------------------------------------------------------------------------------------

    def pace(self, system: str) -> Pace:
        """Return how fast a rung trains here."""
        settings = self._for_training(self.settings_of(system, {RATE: 1e-6}))  # nothing that a high rate could spoil

        def work() -> dict[str, float]:
            say(f"timing {RUNGS[system].words}: a few steps")
            return asdict(time_training(settings, self.trained_on, self.kept))

        return Pace(**self.ledger.run(f"time {system}", work).result)

    def train(self, system: str, settings: Settings) -> None:
        """Train a model; its result is the dev score."""
        train, place = settings.train, self._place(system, settings)

        def work() -> None:
            rate = "" if train.parameters == "none" else f": learning rate {train.learning_rate:g}, seed {train.seed}"
            say(f"{'training' if rate else 'making'} {RUNGS[system].words}{rate}")
            place.train(self._for_training(settings), self.trained_on, kept=self.kept, say=lambda *_, **__: None)

        self._make(system, settings, place, work)

    def fit_head(self, system: str, settings: Settings) -> None:
        """Fit a head behind a trained model; the result is the dev score of both together."""
        (headed,) = (name for name, rung in RUNGS.items() if rung.head_of == system)
        own, (_, behind) = settings_with(settings, WITH_HEAD), self.made[_name(system, settings)]
        place = self._place(headed, own)

        def work() -> None:
            facts = put_behind(
                str(behind.checkpoint),
                own.post,
                prepared=self.trained_on,
                out=place.checkpoint,
                measure=self._for_training(own).train.dev_measure,
            )
            trained = json.loads(behind.metrics.read_text(encoding="utf-8"))
            with publish_file(place.metrics) as target:
                write_json(target, {key: value for key, value in trained.items() if key not in dev_keys()} | facts)

        self._make(headed, own, place, work)

    def again(self, system: str, values: Mapping[str, Any]) -> Models:
        """Make the models of a rung again, with other rows: those too that chose them; return these."""
        folder = self.folder / ALL_ROWS
        rows = settings_with(self.settings, values)
        again = replace(self, settings=rows, folder=folder, ledger=Ledger(folder / "ledger"), ladder=Ladder(), made={})
        again.prepare()
        for name in self.ladder.tried[system].models:
            own = settings_with(self.made[name][0], values)
            if below := RUNGS[system].head_of:
                again.train(below, settings_with(own, {"post.kind": "none"}))
                again.fit_head(below, own)
            else:
                again.train(system, own)
        return again

    # ---- measures and bundle ----------------------------------------------------------------------------------------

    @property
    def measures(self) -> bool:
        """Whether there is anything to measure a model on."""
        data = open_suite(self.rows)
        if not data.own and not data.sts and self.kind != DOCUMENTS:
            raise CseError("nothing to measure: give labelled texts with --labels, or name a task with --task")
        return bool(data.own or data.sts)

    def measure(self, name: str) -> float:
        """Measure a model on the user's task and on whatever STS was prepared; return the seconds that it takes."""
        out, model, device = self.record_of(name), self._model(name), self.settings.evaluation.device

        def work() -> None:
            data, bar = open_suite(self.rows), sys.stderr.isatty()
            data = replace(data, own=[self._named(task) for task in data.own])
            measures = ("sts", "tasks") if data.sts else ("tasks",)
            found = evaluate_models({name: model}, data, measures=measures, device=device, progress=bar, kept=self.kept)
            with publish_folder(out, Kind.RECORD) as folder:
                save_record(folder, name, model, found[name], device)

        return self.ledger.run(f"measure {name}", work, makes=[out]).seconds

    def export(self, name: str, out: Path, before: Models) -> None:
        """Make the bundle of a model, and write down its settings.

        Where it was trained again, on all rows, ``before`` has the model whose held-out rows calibrate its classifier.
        """
        (settings, place), bundle, data = self.made[name], out / "bundle", self.data
        # one bundle, whatever an earlier stop chose
        self.ledger.forget(*(f"export {other}" for other in self.made if other != name))

        def work() -> None:
            say(f"exporting {name}")
            labelled, like = labelled_of(self.rows, self.label_names), None
            if labelled is not None and labelled.measured:
                say(f"its classifier learns the {len(labelled.measured):,} rows that measured, too")
            if labelled is not None and before is not self:
                held, first = labelled_of(before.rows, self.label_names), str(before.made[name][1].checkpoint)
                like = classifier_of(
                    open_model(first, device=self.settings.evaluation.device), labelled if held is None else held
                ).facts
            export_stage(
                self.settings,
                model=settings.backbone if name == BARE else place.checkpoint,  # one that any bank knows
                prepared=data,
                metrics=(place.metrics,),
                bundle=bundle,
                labelled=labelled,
                like=like,
            )

        self.ledger.run(f"export {name}", work, makes=[bundle])
        write_values(out / PARAMS_FILE, flatten(settings.model_dump(mode="json")))

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _named(self, task: Task) -> Task:
        """Return a task, labelled texts with what describes their labels."""
        if self.label_names is None or not isinstance(task, LabelledTexts):
            return task
        return replace(task, names=names_in(self.label_names, task.reference_label))

    def _place(self, system: str, settings: Settings) -> Place:
        return Place(self.folder / "runs" / _name(system, settings))

    def _model(self, name: str) -> str | BackboneOf:
        return BackboneOf(self.settings.backbone) if name == BARE else str(self.made[name][1].checkpoint)

    def _for_training(self, settings: Settings) -> Settings:
        return settings if self.picks else settings_with(settings, {"train.dev_measure": None})

    def _make(self, system: str, settings: Settings, place: Place, work: Callable[[], None]) -> None:
        """Make a model unless it is there, score it, and add it to its rung."""
        name = _name(system, settings)
        self.made[name] = settings, place

        def scored() -> list[float | None]:
            work()
            task = self.dev
            if task is None:
                return [None, None]
            if self.picks:  # what did not pick its weights
                task = part_for_test(task)
            encoder = open_model(self._model(name), device=self.settings.evaluation.device, kept=self.kept)
            if self.chooses_by != CLASS_PROBABILITY:
                return [score_dev(encoder, task, FIT_BATCH, self.chooses_by).value, None]
            wanted = (CLASS_PROBABILITY, ACCURACY)
            found = score_task(encoder, task, batch_size=FIT_BATCH, measures=wanted).values
            return [found[name] for name in wanted]

        record = self.ledger.run(f"train {name}", scored, makes=[place.checkpoint, place.metrics])
        dev, accuracy = record.result
        self.ladder.add(system, name, dev, record.seconds, accuracy)


def _name(system: str, settings: Settings) -> str:
    """Return the name of a model: its rung, and the seed if it has one."""
    rung = RUNGS[system]
    return system if not (rung.steps or rung.head_of) else f"{system}-{settings.train.seed}"
