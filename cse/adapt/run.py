"""Adapt a backbone to a user's own text: rows, plan, seeds, measures, bundle, report, one after the other.

Every step is a stage of the pipeline, run in the adaptation's own folder. A killed adaptation goes on: finished steps
are not repeated, the training that was running resumes, and what the clock decided is in the journal before it is acted
on, so the models are those of an undisturbed one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.adapt.journal import PLAN, Journal
from cse.adapt.language import other_language
from cse.adapt.look import Found
from cse.adapt.made import is_whole
from cse.adapt.pace import time_training
from cse.adapt.plan import FULLY, PROMPTS, Pace, Plan, Work, make_plan, rates_of
from cse.adapt.rows import Rows
from cse.data.store import PreparedData
from cse.data.suite_store import open_suite
from cse.errors import CseError
from cse.evaluation.compared import Compared
from cse.evaluation.dev_facts import dev_of, value_of
from cse.outputs import Kind, publish_folder
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
from cse.stages.prepare import files_of
from cse.stages.train import train_stage

RATE = "train.learning_rate"
BARE = "backbone"
_FULL = {"train.parameters": "full", "prompt.kind": "none", "prompt.length": 0}


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation.

    Attributes:
        folder: everything it made.
        systems: the bare backbone, the prompts, and the fully fine-tuned model if asked for.
        main: task and measure that say whether it helped, named before training; None: no task to measure.
        won: comparisons of the prompts with the bare backbone.
        full: comparisons of the fully fine-tuned model with the prompts.
        seconds: working time.
        notes: what the user should know.
    """

    folder: Path
    systems: list[System]
    main: tuple[str, str] | None
    won: list[Compared]
    full: list[Compared]
    seconds: float
    notes: list[str]


@dataclass(frozen=True)
class Adaptation:
    """An adaptation that is ready to run.

    Attributes:
        settings: of the project, with those that follow from the source.
        found: what the source holds.
        folder: to work in.
        budget: seconds.
        compare_full: whether to train a fully fine-tuned model too.
        again: whether to delete another adaptation in the folder.
    """

    settings: Settings
    found: Found
    folder: Path
    budget: float
    compare_full: bool = False
    again: bool = False

    def run(self) -> Adapted:
        """Do what is not done yet.

        Raises:
            CseError: something wrong with the text or the task, or a budget that is too short for one training.
        """
        if self.settings.train.parameters == "none":
            raise CseError("train.parameters: none leaves nothing to adapt; choose prompts or full")
        facts = {"settings": self.settings.model_dump(mode="json"), "found": self.found.settings}
        asked = {"budget": self.budget, "full": self.compare_full}
        journal = Journal(self.folder, facts, files_of(self.settings.data), asked=asked, again=self.again)
        _say(self.found.told)
        strange = other_language(self.settings.backbone, self.found.language)
        if strange:
            _say(f"note: {strange}")
        rows = self._rows
        journal.run("prepare", partial(rows.prepare, self.settings), [rows.prepared, rows.mined, rows.corrupted])
        self._measure(journal, BARE, None)
        main = journal.run("main measure", rows.main_measure)
        paces = {system: self._pace(journal, system) for system in (PROMPTS, *([FULLY] * self.compare_full))}
        plan = Plan.of(journal.run(PLAN, partial(self._plan, journal, paces)))
        _say(f"plan: {plan}" + (f"; whether it helps is measured by {' '.join(main)}" if main else ""))
        prompts, devs = self._seeds(journal, plan, PROMPTS)
        if self.compare_full:
            self._seeds(journal, plan, FULLY)
        best = max(range(plan.seeds), key=lambda seed: devs[seed] or 0.0)
        journal.run("export", partial(self._export, self._place("runs", PROMPTS, best)), [self.folder / "bundle"])
        own = settings_with(prompts, {"train.seed": prompts.train.seed + best})
        write_values(self.folder / PARAMS_FILE, flatten(own.model_dump(mode="json")))
        systems = group(find_records([self.folder / "records"]))
        won = _compared(systems, BARE, PROMPTS)
        full = _compared(systems, PROMPTS, FULLY) if self.compare_full else []
        notes = [strange] if strange else []
        return Adapted(
            self.folder, systems, main and (main[0], main[1]), won, full, journal.seconds, notes + plan.notes
        )

    @property
    def _rows(self) -> Rows:
        return Rows(self.folder)

    def _plan(self, journal: Journal, paces: Mapping[str, Pace]) -> dict[str, Any]:
        """Return the plan as JSON values."""
        train = self.settings.train
        work = Work(
            {system: rates_of(self.found.view, system, train.learning_rate) for system in paces},
            paces,
            measuring=journal.took(f"measure {BARE}"),
            epochs=train.epochs,
            steps=partial(self._rows.steps, self.settings),
            max_steps=train.max_steps,
            selects=self._rows.select(self.settings),
        )
        return asdict(make_plan(work, budget=self.budget, spent=journal.seconds))

    def _pace(self, journal: Journal, system: str) -> Pace:
        settings = self._of(system, 1e-6, {})  # nothing that a high rate could spoil
        return Pace(**journal.run(f"time {system}", lambda: asdict(time_training(settings, self._rows))))

    def _of(self, system: str, rate: float, others: Mapping[str, Any]) -> Settings:
        """Return the settings of a system."""
        return settings_with(self.settings, {**(_FULL if system == FULLY else {}), RATE: rate, **others})

    def _place(self, folder: str, system: str, seed: int) -> Path:
        return self.folder / folder / f"{system}-{self.settings.train.seed + seed}"

    def _seeds(self, journal: Journal, plan: Plan, system: str) -> tuple[Settings, list[float | None]]:
        """Train and measure a system with every seed, and return its settings and the dev score of each seed."""
        trials = {rate: self.folder / "trials" / f"{system}-{rate:g}" for rate in plan.rates[system]}
        rate = self._best_rate(journal, plan, system, trials)
        settings, devs = self._of(system, rate, plan.training.settings), []
        for seed in range(plan.seeds):
            place = self._place("runs", system, seed)
            own = settings_with(settings, {"train.seed": settings.train.seed + seed})
            tried = trials[rate] if seed == 0 and plan.training == plan.trial else None
            work = partial(self._train, own, place, tried)
            devs.append(journal.run(f"train {place.name}", work, [place / "checkpoint", place / "train.json"]))
            self._measure(journal, place.name, place)
        return settings, devs

    def _best_rate(self, journal: Journal, plan: Plan, system: str, trials: Mapping[float, Path]) -> float:
        """Return the rate with the best dev score, the only one without a trial."""
        if len(trials) == 1:
            return next(iter(trials))
        scores: dict[float, float] = {}
        for rate, place in trials.items():
            settings = self._of(system, rate, plan.trial.settings)
            score, reason = journal.run(f"try {place.name}", partial(self._try, settings, place))
            if score is not None:
                scores[rate] = score
        if not scores:
            raise CseError(reason)
        best = max(scores, key=scores.__getitem__)
        _say(f"best of {len(trials)} learning rates ({system}): {best:g}, dev {scores[best]:.2f}")
        return best

    def _try(self, settings: Settings, place: Path) -> tuple[float | None, str]:
        """Train with a rate; return the dev score, or None and the reason if the rate is too high to train with."""
        try:
            return self._train(settings, place, None), ""
        except CseError as error:
            if not str(error).startswith(RATE):
                raise
            _say(str(error))
            return None, str(error)

    def _train(self, settings: Settings, place: Path, tried: Path | None) -> float | None:
        """Train, or take a trial of the same settings, and return the dev score, if something selects."""
        if tried is not None and tried.is_dir() and not place.exists():
            place.parent.mkdir(exist_ok=True)
            tried.rename(place)
        if not (tried is not None and is_whole(place / "checkpoint") and is_whole(place / "train.json")):
            train_stage(
                settings,
                prepared=self._rows.prepared,
                mined=self._rows.mined,
                corrupted=self._rows.corrupted,
                checkpoint=place / "checkpoint",
                metrics=place / "train.json",
                plots=place / "plots",
            )
        return value_of(dev_of(json.loads((place / "train.json").read_text(encoding="utf-8"))))

    def _measure(self, journal: Journal, name: str, place: Path | None) -> None:
        model = BackboneOf(bare_of(self.settings.backbone)) if place is None else str(place / "checkpoint")
        record = self.folder / "records" / record_folder(name)
        journal.run(f"measure {name}", lambda: self._record(name, model, record), [record])

    def _record(self, name: str, model: str | BackboneOf, record: Path) -> None:
        """Measure a model on the user's task and on whatever STS was prepared, and keep the record."""
        data = open_suite(PreparedData(self._rows.prepared))
        measures = tuple(m for m in ("sts", "tasks") if m == "tasks" or data.sts)
        if not data.tasks and not data.sts:
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

    def _export(self, place: Path) -> None:
        export_stage(
            self.settings,
            model=place / "checkpoint",
            prepared=self._rows.prepared,
            metrics=(place / "train.json",),
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
