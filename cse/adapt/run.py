"""Adapt a backbone to a user's own text: rows, settings, seeds, measures, bundle, report, one after the other.

Every step is a stage of the pipeline, run in the adaptation's own folder. A killed adaptation goes on: finished steps
are not repeated, and the training or sweep that was running resumes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from cse.adapt.budget import FULL_COSTS, SEEDS, Spend, check_budget
from cse.adapt.journal import Journal
from cse.adapt.language import other_language
from cse.adapt.look import Found
from cse.data.store import PreparedData
from cse.data.suite_store import open_suite
from cse.data.tasks.kinds import all_texts
from cse.data.tasks.store import open_dev
from cse.errors import CseError
from cse.evaluation.compared import Compared
from cse.evaluation.sts import sentences_of
from cse.outputs import Kind, publish_folder
from cse.report.comparisons import comparisons
from cse.report.systems import System, find_records, group
from cse.settings import PARAMS_FILE, Settings
from cse.settings.edit import write_values
from cse.settings.load import flatten
from cse.settings.spaces import settings_with
from cse.stages.common import SCRATCH
from cse.stages.corrupt import corrupt_stage
from cse.stages.export import export_stage
from cse.stages.mine import mine_stage
from cse.stages.mined import rows_to_train
from cse.stages.open_model import evaluate_models, record_folder, save_record
from cse.stages.prepare import files_of, prepare_stage
from cse.stages.train import train_stage

RATE = "train.learning_rate"
BARE, PROMPTS, FULLY = "backbone", "prompts", "full"
# learning rates to try, the likely ones first, since a short budget tries fewer; labels bear higher ones
RATES: dict[str, tuple[float, ...]] = {PROMPTS: (0.01, 0.03, 0.003, 0.1), FULLY: (5e-5, 1.5e-4, 1.5e-5)}
RATES_OF_LABELS: dict[str, tuple[float, ...]] = {PROMPTS: (0.1, 0.3, 0.03), FULLY: (2e-4, 5e-4, 5e-5)}
EVALUATIONS = 8  # on the dev task, in a training
_FOR_SEARCH = 0.5  # share of the budget that tries settings


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation.

    Attributes:
        folder: everything it made.
        systems: the bare backbone, the prompts, and the fully fine-tuned model if asked for.
        won: comparisons of the prompts with the bare backbone.
        full: comparisons of the fully fine-tuned model with the prompts.
        seconds: working time.
        chosen: values that the search chose.
        notes: what the user should know.
    """

    folder: Path
    systems: list[System]
    won: list[Compared]
    full: list[Compared]
    seconds: float
    chosen: Mapping[str, Any]
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
        facts = {"settings": self.settings.model_dump(mode="json"), "found": self.found.settings}
        journal = Journal(self.folder, facts, files_of(self.settings.data), again=self.again)
        _say(self.found.told)
        strange = other_language(self.settings.backbone, self.found.language)
        if strange:
            _say(f"note: {strange}")
        journal.run("prepare", self._prepare)
        texts = journal.run("measure the backbone", lambda: self._measure(BARE, None))
        rows = journal.run("count the rows", self._rows)
        measuring = journal.took("measure the backbone")
        each = 1 + sum(source.weight for source in self.settings.data.more)  # batches for one of the main source
        texts_to_train = int(math.prod(rows) * each * self.settings.train.epochs)
        journal.run(
            "check the budget", lambda: check_budget(self.budget, journal.seconds, measuring, texts, texts_to_train)
        )
        first = self._paced(self.settings, rows, self.settings.train.epochs)
        journal.run("train", lambda: self._train(first, self._checkpoint(PROMPTS, 0)))
        once = journal.took("train")
        until = self.budget * _FOR_SEARCH / (2 if self.compare_full else 1)
        chosen = journal.run("search", lambda: self._search(first, self._rates[PROMPTS], until - journal.seconds, once))
        rate = (
            {} if not self.compare_full else journal.run("search full", lambda: self._search_full(journal, first, once))
        )
        fixed = self.settings.train.epochs
        more = open_dev(PreparedData(self._prepared)) is not None  # something keeps the best of more epochs
        spend = Spend(self.budget - journal.seconds, once, measuring, self.compare_full)
        seeds, epochs = journal.run("plan", lambda: (spend.seeds, spend.epochs(fixed) if more else fixed))
        settings = self._paced(settings_with(first, chosen), rows, epochs)
        self._repeat(journal, PROMPTS, settings, seeds, same=settings == first)
        if self.compare_full:
            self._repeat(journal, FULLY, settings_with(settings, self._full | rate), seeds, same=False)
        best = max(range(seeds), key=lambda seed: self._dev(PROMPTS, seed))
        journal.run("export", lambda: self._export(best))
        own = settings_with(settings, {"train.seed": settings.train.seed + best})
        write_values(self.folder / PARAMS_FILE, flatten(own.model_dump(mode="json")))
        systems = group(find_records([self.folder / "records"]))
        bare, prompts = (self._system(systems, name) for name in (BARE, PROMPTS))
        won = [one for _, _, found in comparisons([bare, prompts], bare.name) for one in found]
        full: list[Compared] = []
        if self.compare_full:
            pair = [prompts, self._system(systems, FULLY)]
            full = [one for _, _, found in comparisons(pair, prompts.name) for one in found]
        return Adapted(self.folder, systems, won, full, journal.seconds, chosen, self._notes(seeds))

    def _prepare(self) -> None:
        prepare_stage(self.settings, prepared=self._prepared, metrics=self.folder / "prepare.json")
        mine_stage(self.settings, prepared=self._prepared, mined=self.folder / "mined")
        corrupt_stage(self.settings, prepared=self._prepared, corrupted=self.folder / "corrupted")

    @property
    def _prepared(self) -> Path:
        return self.folder / "prepared"

    @property
    def _rates(self) -> dict[str, tuple[float, ...]]:
        return RATES_OF_LABELS if self.found.view == "categories" else RATES

    @property
    def _full(self) -> dict[str, Any]:
        """Settings of full fine-tuning, on top of those of the prompts."""
        return {"train.parameters": "full", "prompt.kind": "none", "prompt.length": 0, RATE: self._rates[FULLY][0]}

    def _checkpoint(self, system: str, seed: int) -> Path:
        return self.folder / "runs" / f"{system}-{self.settings.train.seed + seed}"

    def _train(self, settings: Settings, place: Path) -> None:
        train_stage(
            settings,
            prepared=self._prepared,
            mined=self.folder / "mined",
            corrupted=self.folder / "corrupted",
            checkpoint=place / "checkpoint",
            metrics=place / "train.json",
            plots=place / "plots",
        )

    def _measure(self, name: str, place: Path | None) -> int:
        """Measure a model on the user's task and on whatever STS was prepared, keep the record, and return the number
        of texts.
        """
        data = open_suite(PreparedData(self._prepared))
        measures = tuple(m for m in ("sts", "tasks") if m == "tasks" or data.sts)
        if not data.tasks and not data.sts:
            raise CseError("nothing to measure: name a task with --task, or prepare rows that can be held out")
        model = str(place / "checkpoint") if place is not None else self.settings.backbone.name
        options = self.settings.evaluation
        results = evaluate_models(
            {name: model},
            data,
            measures=measures,
            device=options.device,
            batch_size=options.batch_size,
            progress=sys.stderr.isatty(),
        )
        with publish_folder(self.folder / "records" / record_folder(name), Kind.RECORD) as folder:
            save_record(folder, name, model, results[name], options.device)
        return len({text for task in data.tasks for text in all_texts(task)}) + len(set(sentences_of(data.sts)))

    def _rows(self) -> tuple[int, int]:
        """Return the training rows and the texts in each."""
        rows = rows_to_train(
            self.settings.mine,
            self.settings.backbone,
            self.settings.pooler.kind,
            self.settings.train.roles,
            prepared=self._prepared,
            mined=self.folder / "mined",
        ).train
        return len(rows), len(rows.column_names)

    def _paced(self, settings: Settings, rows: tuple[int, int], epochs: int) -> Settings:
        """Return settings for so many epochs, with dev evaluations spread over them."""
        steps = epochs * math.ceil(rows[0] / settings.train.batch_size)
        steps = min(steps, settings.train.max_steps or steps)
        every = max(1, steps // EVALUATIONS)
        return settings_with(settings, {"train.epochs": epochs, "train.eval_every": every})

    def _search(self, settings: Settings, rates: Sequence[float], seconds: float, once: float) -> dict[str, Any]:
        """Return the best learning rate as a setting; none where nothing selects or the time allows no search.

        Args:
            settings: of each trial.
            rates: to try.
            seconds: time for it.
            once: seconds of a training.
        """
        trials = min(int(seconds // max(once, 1.0)), len(rates))
        if trials < 2 or open_dev(PreparedData(self._prepared)) is None:
            return {}
        from cse.tune.driver import run_sweep

        tried = {"tune.over": [f"{RATE}={list(rates[:trials])}"], "tune.trials": trials, "tune.search": "grid"}
        sweep = run_sweep(
            settings_with(settings, tried),
            prepared=self._prepared,
            mined=self.folder / "mined",
            corrupted=self.folder / "corrupted",
            scratch=SCRATCH,
        )
        best = {RATE: sweep.best.values[RATE]}
        _say(f"best of {len(sweep.trials)} settings: {best}")
        return {} if best[RATE] == settings.train.learning_rate else best

    def _search_full(self, journal: Journal, settings: Settings, once: float) -> dict[str, Any]:
        seconds = self.budget * _FOR_SEARCH - journal.seconds
        return self._search(settings_with(settings, self._full), self._rates[FULLY], seconds, once * FULL_COSTS)

    def _repeat(self, journal: Journal, system: str, settings: Settings, seeds: int, *, same: bool) -> None:
        for seed in range(seeds):
            place = self._checkpoint(system, seed)
            number = settings.train.seed + seed
            own = settings_with(settings, {"train.seed": number})
            if not (same and seed == 0):  # the first training was that one
                journal.run(f"train {place.name}", partial(self._train, own, place))
            journal.run(f"measure {place.name}", partial(self._measure, place.name, place))

    def _dev(self, system: str, seed: int) -> float:
        facts = json.loads((self._checkpoint(system, seed) / "train.json").read_text(encoding="utf-8"))
        return float(facts.get("dev_score", facts.get("dev_spearman", -seed)))

    def _export(self, best: int) -> None:
        place = self._checkpoint(PROMPTS, best)
        export_stage(
            self.settings,
            model=place / "checkpoint",
            prepared=self._prepared,
            metrics=(place / "train.json",),
            bundle=self.folder / "bundle",
        )

    def _system(self, systems: list[System], name: str) -> System:
        """Return the runs of a system under its name, whatever the records were called."""
        found = next(one for one in systems if one.first.name.split("-")[0] == name)
        return replace(found, name=name)

    def _notes(self, seeds: int) -> list[str]:
        notes = [strange] if (strange := other_language(self.settings.backbone, self.found.language)) else []
        if seeds < SEEDS:
            notes.append(f"the budget allowed {seeds} of {SEEDS} seeds: the next training may differ by more than this")
        return notes


def _say(line: str) -> None:
    click.echo(line, err=True)
