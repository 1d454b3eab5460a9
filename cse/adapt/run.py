"""Adapt a backbone to a user's own text: rows, a ladder of models from cheap to dear, a choice, measures, bundle.

Every step is a stage of the pipeline, run in the adaptation's own folder. A killed adaptation goes on: finished steps
are not repeated, the training that was running resumes, and what the clock decided is in the journal before it is acted
on, so the models are those of an undisturbed one. What held-out rows chose is there before a test set is opened.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.adapt.journal import PLAN, Journal
from cse.adapt.ladder import BARE, FULL, HEAD, HEADED, IN_WORDS, PROMPTS, Ladder, Rung
from cse.adapt.language import other_language
from cse.adapt.look import Found
from cse.adapt.made import is_whole
from cse.adapt.measured import main_measure, selects
from cse.adapt.pace import time_training
from cse.adapt.plan import Pace, TrainingPlan, Workload, make_plan, rates_of
from cse.bench.data import DataFolders
from cse.bench.pacing import steps_of
from cse.bench.place import Place
from cse.data.store import PreparedData
from cse.data.suite import open_suite
from cse.errors import CseError, Interrupted
from cse.evaluation.compared import Compared
from cse.evaluation.dev_facts import dev_keys, dev_of, value_of
from cse.files import write_json
from cse.outputs import Kind, publish_file, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System, find_records, group
from cse.settings import PARAMS_FILE, Settings
from cse.settings.edit import write_values
from cse.settings.load import flatten
from cse.settings.spaces import settings_with
from cse.stages.evaluate_models import evaluate_models, record_folder, save_record
from cse.stages.export import export_stage
from cse.stages.open_backbone import bare_of
from cse.stages.open_model import BackboneOf
from cse.stages.post import put_behind
from cse.stages.prepare import files_of

RATE = "train.learning_rate"
_NO_PROMPT = {"prompt.kind": "none", "prompt.length": 0}
_UNTRAINED = {**_NO_PROMPT, "train.parameters": "none", "pooler.kind": None, "pooler.mlp": "none"}
_WITH_HEAD = {"post.kind": "linear"}
_OF = {
    BARE: _UNTRAINED,
    HEAD: _UNTRAINED | _WITH_HEAD,
    FULL: {**_NO_PROMPT, "train.parameters": "full"},
}


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation.

    Attributes:
        folder: everything it made.
        systems: those that were measured: the bare backbone, the chosen one, and the best of the other kind.
        main: task and measure that say whether it helped, named before training; None: no task to measure.
        ladder: all that was tried, with the scores on held-out rows.
        chosen: what held-out rows chose.
        won: comparisons of what was chosen with the bare backbone; empty if that was chosen.
        other: what of the other kind was measured, see ``Ladder.other_kind``; None: nothing.
        others: comparisons of that with what was chosen.
        model: name of the model in the bundle.
        seconds: working time.
        notes: what the user should know.
        stopped: whether the user stopped it before the ladder's end.
    """

    folder: Path
    systems: list[System]
    main: tuple[str, str] | None
    ladder: Ladder
    chosen: Rung
    won: list[Compared]
    other: Rung | None
    others: list[Compared]
    model: str
    seconds: float
    notes: list[str]
    stopped: bool = False


@dataclass(frozen=True)
class Adaptation:
    """An adaptation that is ready to run.

    Attributes:
        settings: of the project, with those that follow from the source.
        found: what the source holds.
        folder: to work in.
        budget: seconds.
        own_backbone: whether to train the whole model too, if the budget allows.
        again: whether to delete another adaptation in the folder.
    """

    settings: Settings
    found: Found
    folder: Path
    budget: float
    own_backbone: bool = False
    again: bool = False

    def run(self) -> Adapted:
        """Do what is not done yet; Ctrl-C ends the ladder once it has a second rung, and the best so far is taken.

        Raises:
            CseError: something wrong with the text or the task, or a budget that is too short for one training.
        """
        if self.settings.train.parameters == "none":
            raise CseError("train.parameters: none leaves nothing to adapt; choose prompts or full")
        facts = {"settings": self.settings.model_dump(mode="json"), "found": self.found.settings}
        asked = {"budget": self.budget, "own_backbone": self.own_backbone}
        journal = Journal(self.folder, facts, files_of(self.settings.data), asked=asked, again=self.again)
        _say(self.found.told)
        strange = other_language(self.settings.backbone, self.found.language)
        if strange:
            _say(f"note: {strange}")
        data = self._data
        journal.run("prepare", partial(data.prepare, self.settings), [data.prepared, data.mined, data.corrupted])
        self._measure(journal, BARE)
        main = journal.run("main measure", lambda: main_measure(PreparedData(data.prepared)))
        ladder, stopped = Ladder(), False
        made: dict[str, Settings] = {}
        notes = [strange] if strange else []
        try:
            notes += self._climb(journal, ladder, made, main)
        except (KeyboardInterrupt, Interrupted) as stop:
            by_hand = not isinstance(stop, Interrupted) or stop.number == signal.SIGINT
            if not by_hand or len(ladder.rungs) < 2:
                raise
            stopped = True
            _say("stopped: the best so far is measured and exported; Ctrl-C again ends without it")
        chosen, other = self._choice(journal, ladder, stopped=stopped)
        names = list(dict.fromkeys([BARE, *chosen.models, *(other.models if other else ())]))
        for name in names:
            self._measure(journal, name)
        systems = group(find_records([self._record_of(name) for name in names]))
        won = [] if chosen.system == BARE else _compared(systems, BARE, chosen.system)
        others = [] if other is None else _compared(systems, chosen.system, other.system)
        fell = any((one.task, one.measure) == tuple(main or ()) and one.comparison.verdict == "worse" for one in won)
        model = BARE if fell else chosen.best
        journal.forget(f"export {name}" for name in made if name != model)  # one bundle, whatever an earlier stop chose
        journal.run(f"export {model}", partial(self._export, self._place(model)), [self.folder / "bundle"])
        write_values(self.folder / PARAMS_FILE, flatten(made[model].model_dump(mode="json")))
        return Adapted(
            self.folder, systems, main and (main[0], main[1]), ladder, chosen, won, other, others, model,
            journal.seconds, notes, stopped,
        )  # fmt: skip

    @property
    def _data(self) -> DataFolders:
        return DataFolders.below(self.folder)

    def _place(self, model: str) -> Place:
        return Place(self.folder / "runs" / model)

    def _record_of(self, model: str) -> Path:
        return self.folder / "records" / record_folder(model)

    def _climb(
        self, journal: Journal, ladder: Ladder, made: dict[str, Settings], main: Sequence[str] | None
    ) -> list[str]:
        """Add one rung after the other, with the settings of each model; return what the user should know of it."""
        labels = self.found.view == "categories"
        for system in (BARE, *([HEAD] if labels else [])):
            self._rung(journal, ladder, made, system, system, settings_with(self.settings, _OF[system]))
            _say(f"{ladder.rungs[system]}")
        systems = (PROMPTS, *([FULL] if self.own_backbone else []))
        paces = {system: self._pace(journal, system) for system in systems}
        try:
            plan = TrainingPlan.of(journal.run(PLAN, partial(self._plan, journal, paces)))
        except CseError:  # too short a budget: another attempt may find a machine that is less busy
            journal.forget(f"time {system}" for system in systems)
            raise
        too_dear = [system for system in systems if system not in plan.rates]
        _say(f"plan: {plan}" + (f"; whether it helps is measured by {' '.join(main)}" if main else ""))
        for system in plan.rates:
            self._seeds(journal, plan, system, ladder, made)
            for each in (system, HEADED[system]):
                if each in ladder.rungs:
                    _say(f"{ladder.rungs[each]}")
        return plan.notes + [f"the budget allowed no {IN_WORDS[system]}" for system in too_dear]

    def _choice(self, journal: Journal, ladder: Ladder, *, stopped: bool) -> tuple[Rung, Rung | None]:
        """Return what held-out rows choose and the best of the other kind, recorded unless the ladder was cut short."""

        def choose() -> list[str]:
            chosen = ladder.chosen()
            other = ladder.other_kind(chosen) if chosen else None
            return [rung.system for rung in (chosen, other) if rung]

        systems = choose() if stopped else journal.run("choice", choose)
        chosen, *others = [ladder.rungs[system] for system in systems]
        return chosen, others[0] if others else None

    def _plan(self, journal: Journal, paces: Mapping[str, Pace]) -> dict[str, Any]:
        """Return the plan as JSON values."""
        train, heads = self.settings.train, [f"train {HEAD}"] if f"train {HEAD}" in journal.steps else []
        work = Workload(
            {system: rates_of(self.found.view, system, train.learning_rate) for system in paces},
            paces,
            measuring=sum(map(journal.took, [f"measure {BARE}", *heads])),  # a head is fitted behind each model
            epochs=train.epochs,
            steps=lambda epochs: steps_of(settings_with(self.settings, {"train.epochs": epochs}), self._data),
            max_steps=train.max_steps,
            selects=selects(PreparedData(self._data.prepared), self.settings),
            labelled=self.found.view == "categories",
        )
        return asdict(make_plan(work, budget=self.budget, spent=journal.seconds))

    def _pace(self, journal: Journal, system: str) -> Pace:
        settings = self._of(system, 1e-6, {})  # nothing that a high rate could spoil
        return Pace(**journal.run(f"time {system}", lambda: asdict(time_training(settings, self._data))))

    def _of(self, system: str, rate: float, others: Mapping[str, Any]) -> Settings:
        """Return the settings of a system that is trained."""
        return settings_with(self.settings, {**_OF.get(system, {}), RATE: rate, **others})

    def _rung(
        self,
        journal: Journal,
        ladder: Ladder,
        made: dict[str, Settings],
        system: str,
        model: str,
        settings: Settings,
        work: Callable[[], float | None] | None = None,
    ) -> None:
        """Make a model unless it is there, and add it to its rung; without ``work`` it is trained with the settings."""
        place = self._place(model)
        work = work or partial(self._train, settings, place, None)
        dev = journal.run(f"train {model}", work, [place.checkpoint, place.metrics])
        made[model] = settings
        ladder.add(system, model, dev, journal.took(f"train {model}"))

    def _seeds(
        self, journal: Journal, plan: TrainingPlan, system: str, ladder: Ladder, made: dict[str, Settings]
    ) -> None:
        """Train a system with every seed and, where there are labels, fit a head behind each model."""
        trials = {rate: Place(self.folder / "trials" / f"{system}-{rate:g}") for rate in plan.rates[system]}
        rate = self._best_rate(journal, plan, system, trials)
        settings = self._of(system, rate, plan.training.settings)
        for number in range(plan.seeds):
            seed = settings.train.seed + number
            model, headed = f"{system}-{seed}", f"{HEADED[system]}-{seed}"
            own = settings_with(settings, {"train.seed": seed})
            tried = trials[rate] if number == 0 and plan.training == plan.trial else None
            work = partial(self._train, own, self._place(model), tried)
            self._rung(journal, ladder, made, system, model, own, work)
            if HEAD in ladder.rungs:
                own = settings_with(own, _WITH_HEAD)
                work = partial(self._fit_head, own, self._place(model), self._place(headed))
                self._rung(journal, ladder, made, HEADED[system], headed, own, work)

    def _best_rate(self, journal: Journal, plan: TrainingPlan, system: str, trials: Mapping[float, Place]) -> float:
        """Return the rate with the best dev score, the only one without a trial."""
        if len(trials) == 1:
            return next(iter(trials))
        scores: dict[float, float] = {}
        for rate, place in trials.items():
            settings = self._of(system, rate, plan.trial.settings)
            score, reason = journal.run(f"try {place.folder.name}", partial(self._try, settings, place))
            if score is not None:
                scores[rate] = score
        if not scores:
            raise CseError(reason)
        best = max(scores, key=scores.__getitem__)
        _say(f"best of {len(trials)} learning rates ({system}): {best:g}, dev {scores[best]:.2f}")
        return best

    def _try(self, settings: Settings, place: Place) -> tuple[float | None, str]:
        """Train with a rate; return the dev score, or None and the reason if the rate is too high to train with."""
        try:
            return self._train(settings, place, None), ""
        except CseError as error:
            if not str(error).startswith(RATE):
                raise
            _say(str(error))
            return None, str(error)

    def _train(self, settings: Settings, place: Place, tried: Place | None) -> float | None:
        """Train, or take a trial of the same settings, and return the dev score, if something selects."""
        if tried is not None and tried.folder.is_dir() and not place.folder.exists():
            place.folder.parent.mkdir(exist_ok=True)
            tried.folder.rename(place.folder)
        if not (tried is not None and is_whole(place.checkpoint) and is_whole(place.metrics)):
            place.train(settings, self._data)
        return value_of(place.dev())

    def _fit_head(self, settings: Settings, model: Place, place: Place) -> float | None:
        """Fit a head behind a trained model, and return the dev score of both together."""
        facts = put_behind(
            str(model.checkpoint),
            settings.post,
            prepared=self._data.prepared,
            out=place.checkpoint,
            measure=settings.train.dev_measure,
        )
        trained = json.loads(model.metrics.read_text(encoding="utf-8"))
        kept = {key: value for key, value in trained.items() if key not in dev_keys()}
        with publish_file(place.metrics) as target:
            write_json(target, kept | facts)
        return value_of(dev_of(facts))

    def _measure(self, journal: Journal, name: str) -> None:
        bare = BackboneOf(bare_of(self.settings.backbone))
        model = bare if name == BARE else str(self._place(name).checkpoint)
        record = self._record_of(name)
        journal.run(f"measure {name}", lambda: self._record(name, model, record), [record])

    def _record(self, name: str, model: str | BackboneOf, record: Path) -> None:
        """Measure a model on the user's task and on whatever STS was prepared, and keep the record."""
        data = open_suite(PreparedData(self._data.prepared))
        measures = tuple(m for m in ("sts", "tasks") if m == "tasks" or data.sts)
        if not data.own and not data.sts:
            raise CseError("nothing to measure: name a task with --task, or prepare rows that can be held out")
        options = self.settings.evaluation
        results = evaluate_models(
            {name: model},
            data,
            measures=measures,
            device=options.device,
            batch_size=options.batch_size,
            progress=sys.stderr.isatty(),
        )
        with publish_folder(record, Kind.RECORD) as folder:
            save_record(folder, name, model, results[name], options.device)

    def _export(self, place: Place) -> None:
        export_stage(
            self.settings,
            model=place.checkpoint,
            prepared=self._data.prepared,
            metrics=(place.metrics,),
            bundle=self.folder / "bundle",
        )


def _compared(systems: Sequence[System], before: str, after: str) -> list[Compared]:
    """Compare two systems, by the names that their records begin with."""
    pair = [
        replace(next(one for one in systems if one.first.name.split("-")[0] == name), name=name)
        for name in (before, after)
    ]
    return [one for _, _, found in comparisons(pair, before) for one in found]


def _say(line: str) -> None:
    click.echo(line, err=True)
