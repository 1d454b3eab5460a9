"""Adapt a backbone to a user's own text: rows, a ladder of models from cheap to dear, a choice, measures, bundle.

Every step is a stage of the pipeline, run in the adaptation's own folder. A killed adaptation goes on: finished steps
are not repeated, the training that was running resumes, and what the clock decided is on record before it is acted on,
so the models are those of an undisturbed one. What held-out rows chose is there before a test set is opened.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from cse.adapt.judged import JUDGED, Judged
from cse.adapt.ladder import (
    BARE,
    FULL,
    HEAD,
    HEADED,
    IN_WORDS,
    PROMPTS,
    QUERY_MAP,
    QUERY_PROMPTS,
    Ladder,
    Rung,
)
from cse.adapt.look import Found
from cse.adapt.made import PLAN, VECTORS, open_ledger
from cse.adapt.models import ON_ALL_ROWS, RATE, Models
from cse.adapt.plan import SEEDS, TooShortError, TrainingPlan, Workload, make_plan, rates_of
from cse.errors import CseError, Interrupted
from cse.evaluation.comparison import Compared
from cse.evaluation.score import CLASS_PROBABILITY
from cse.model.backbone_files import find_backbone
from cse.model.declared import languages_of
from cse.report.comparisons import comparisons
from cse.report.systems import System, find_records, group
from cse.runtime.kept_vectors import keep_vectors
from cse.settings import Settings
from cse.settings.load import settings_with
from cse.stages.place import steps_of


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation.

    Attributes:
        systems: those that were measured: the bare backbone, the chosen one, and the best of the other kind.
        main: task and measure that say whether it helped, named before training; None: no task to measure.
        ladder: all that was tried, with the scores on held-out rows.
        won: comparisons of what was chosen with the bare backbone; empty if that was chosen.
        other: what of the other kind was measured, see ``Ladder.other_kind``; None: nothing.
        searched: whether documents were adapted to: queries change, and documents keep their vectors.
        stopped: whether the user stopped it before the ladder's end.
        dev: score of the model in the bundle on held-out rows; None: there are none, or it was trained on them too.
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
    searched: bool = False
    stopped: bool = False
    dev: float | None = None


@dataclass(frozen=True)
class Adaptation:
    """An adaptation that is ready to run.

    Attributes:
        settings: of the project, with those that follow from the source.
        budget: seconds.
        own_backbone: whether to train the whole model too, if the budget allows.
        judged: judged queries that choose, for documents; None: nothing chooses there.
        again: whether to delete another adaptation in the folder.
    """

    settings: Settings
    found: Found
    folder: Path
    budget: float
    own_backbone: bool = False
    judged: Judged | None = None
    again: bool = False

    def run(self) -> Adapted:
        """Do what is not done yet; Ctrl-C ends the ladder once it has a second rung, and the best so far is taken."""
        if self.settings.train.parameters == "none":
            raise CseError("train.parameters: none leaves nothing to adapt; choose prompts or full")
        ledger = open_ledger(self.folder, self.settings, self._asked, again=self.again)
        _say(self.found.told)
        settings = self.settings
        if self.judged is not None:
            _say(ledger.run(JUDGED, self.judged.write, makes=[self.judged.folder]).result)
            settings = settings_with(settings, self.judged.choosing)
        models = Models(settings, self.folder, ledger, self.folder, keeps_last=self._few or self.found.searched)
        with keep_vectors(self.folder / VECTORS) if self.found.searched else nullcontext():
            return self._run(models)

    def _run(self, models: Models) -> Adapted:
        """Climb the ladder, choose, measure and export."""
        ladder, ledger, stopped, whole = models.ladder, models.ledger, False, True
        strange = self._other_language()
        notes = [strange] if strange else []
        for note in notes:
            _say(f"note: {note}")
        models.prepare()
        measures = models.measures or not self.found.searched
        measuring = models.measure(BARE).seconds if measures else 0.0
        main = models.main_measure()
        try:
            notes += self._climb(models, measuring, main)
        except TooShortError as short:
            known = (HEAD, QUERY_MAP, *([BARE] if self._labelled else []))
            cheap = next((system for system in known if system in ladder.rungs), None)
            if cheap is None:
                raise
            whole = False
            _say(f"{short}; {IN_WORDS[cheap]}: that is what there is time for")
            dear = QUERY_PROMPTS if cheap == QUERY_MAP else PROMPTS
            notes.append(f"the budget allowed no {IN_WORDS[dear]}: {short}")
        except (KeyboardInterrupt, Interrupted) as stop:
            by_hand = not isinstance(stop, Interrupted) or stop.number == signal.SIGINT
            if not by_hand or len(ladder.rungs) < 2:
                raise
            stopped, whole = True, False
            _say("stopped: the best so far is measured and exported; Ctrl-C again ends without it")
        # on record before a test set is opened, unless the ladder was cut short
        systems = ledger.run("choice", lambda: self._choice(ladder)).result if whole else self._choice(ladder)
        chosen, other = ladder.rungs[systems[0]], ladder.rungs[systems[1]] if systems[1:] else None
        final = models
        if (rows := self._rows_that_chose(models, chosen)) is not None and not stopped:
            said, values = rows
            _say(f"{said}: what they chose is trained again, on them too")
            final = models.again(systems, values)
            notes.append(f"{said}; what is measured and in the bundle was trained again, on them too")
        names = list(dict.fromkeys([BARE, *chosen.models, *(other.models if other else ())])) if measures else []
        for name in names:
            final.measure(name)
        found = group(find_records([final.record_of(name) for name in names])) if names else []
        won = [] if chosen.system == BARE or not names else _compared(found, BARE, chosen.system)
        others = [] if other is None else _compared(found, chosen.system, other.system)
        model = BARE if any((one.task, one.measure) == main and self._fell(one) for one in won) else chosen.best
        if model not in final.made:  # the bare backbone, which has no rows
            final = models
        final.export(model)
        seconds = models.seconds + (final.seconds if final is not models else 0.0)
        return Adapted(
            self.folder,
            found,
            main,
            ladder,
            chosen,
            won,
            other,
            others,
            model,
            seconds,
            notes,
            self.found.searched,
            stopped,
            final.ladder.dev_of(model),
        )

    def _choice(self, ladder: Ladder) -> list[str]:
        """Return the system that is chosen, and that of the other kind; of searched documents judged queries choose."""
        return [QUERY_MAP] if self.found.searched and self.judged is None else ladder.choice()

    def _fell(self, one: Compared) -> bool:
        """Return whether a comparison keeps the bare backbone; a search without any gain does."""
        return one.comparison.verdict == "worse" or (self.found.searched and one.comparison.difference <= 0)

    def _rows_that_chose(self, models: Models, chosen: Rung) -> tuple[str, dict[str, Any]] | None:
        """Return what chose and is to be trained on too, in words and as settings; None if it stays apart."""
        if self.judged is not None:
            return None if chosen.system == BARE else ("judged queries chose", self.judged.training)
        share = models.held_out if self._few else 0.0
        return (f"{share:.0%} of the labelled rows were held out to choose", ON_ALL_ROWS) if share else None

    def _other_language(self) -> str:
        """Return a note if the text is in a language that the backbone's card does not name; else nothing."""
        backbone, language = self.settings.backbone, self.found.language
        known = languages_of(find_backbone(backbone.name, backbone.revision).folder)
        if language is None or not known or any(code.split("-")[0] == language for code in known):
            return ""
        return (
            f"the text is in another language ({language}) than {backbone.name} was trained on ({', '.join(known)}); "
            "prompts cannot teach it one: choose a backbone that reads it (-s backbone.name=...)"
        )

    @property
    def _labelled(self) -> bool:
        return self.found.view == "categories"

    @property
    def _few(self) -> bool:
        """Whether labelled rows are few: by what chooses among the models, see ``look``."""
        return self._labelled and self.settings.train.dev_measure == CLASS_PROBABILITY

    @property
    def _asked(self) -> dict[str, Any]:
        """What the plan follows from."""
        return {"budget": self.budget, "own_backbone": self.own_backbone}

    def _climb(self, models: Models, measuring: float, main: tuple[str, str] | None) -> list[str]:
        """Add one rung after the other; return what the user should know of it.

        Args:
            measuring: seconds that measuring the bare backbone took.
        """
        ladder, searched = models.ladder, self.found.searched
        # of few rows a head costs accuracy, and what chooses among them cannot compare it: see docs/results.md
        headed = self._labelled and not self._few
        for system in (BARE, *([HEAD] if headed else []), *([QUERY_MAP] if searched else [])):
            models.train(system, models.settings_of(system))
            _say(f"{ladder.rungs[system]}")
        if searched and self.judged is None:
            return []
        if headed:
            measuring += ladder.rungs[HEAD].seconds  # a head is fitted behind each model
        trained = (QUERY_PROMPTS,) if searched else (PROMPTS, *([FULL] if self.own_backbone else []))
        plan = self._plan(models, measuring, trained)
        _say(f"plan: {plan}" + (f"; whether it helps is measured by {' '.join(main)}" if main else ""))
        for system in plan.rates:
            self._seeds(models, plan, system)
            for each in (system, HEADED.get(system)):
                if each in ladder.rungs:
                    _say(f"{ladder.rungs[each]}")
        if searched:
            return []
        too_dear = [FULL] if self.own_backbone and FULL not in plan.rates else []
        return plan.notes + [f"the budget allowed no {IN_WORDS[system]}" for system in too_dear]

    def _plan(self, models: Models, measuring: float, systems: Sequence[str]) -> TrainingPlan:
        """Return the plan; what it asks of this machine is forgotten if the budget is too short for any."""
        train, searched = self.settings.train, self.found.searched
        paces = {system: models.pace(system) for system in systems}

        def plan() -> dict[str, Any]:
            few = searched or self._few  # what is chosen is trained again
            work = Workload(
                {system: rates_of(self.found.view, system, train.learning_rate, few) for system in paces},
                paces,
                measuring=measuring,
                epochs=train.epochs,
                steps=lambda epochs: steps_of(settings_with(models.settings, {"train.epochs": epochs}), models.data),
                max_steps=train.max_steps,
                selects=models.selects and not searched,  # one rate and two epochs are known to do there
                labelled=self._labelled,
                few=few,
                seeds=1 if searched else SEEDS,
            )
            return asdict(make_plan(work, budget=self.budget, spent=models.seconds))

        try:
            return TypeAdapter(TrainingPlan).validate_python(models.ledger.run(PLAN, plan, of=self._asked).result)
        except CseError:  # another attempt may find a machine that is less busy
            models.ledger.forget(*(f"time {system}" for system in paces))
            raise

    def _seeds(self, models: Models, plan: TrainingPlan, system: str) -> None:
        """Train a system with every seed and, where there are labels, fit a head behind each model."""
        rate = self._best_rate(models, plan, system)
        settings = models.settings_of(system, {RATE: rate, **plan.training.settings})
        for number in range(plan.seeds):
            own = settings_with(settings, {"train.seed": settings.train.seed + number})
            models.train(system, own, tried=number == 0 and plan.training == plan.trial)
            if HEAD in models.ladder.rungs:
                models.fit_head(system, own)

    def _best_rate(self, models: Models, plan: TrainingPlan, system: str) -> float:
        """Return the rate with the best dev score, the only one without a trial."""
        rates = plan.rates[system]
        if len(rates) == 1:
            return rates[0]
        scores: dict[float, float] = {}
        for rate in rates:
            tried = models.try_rate(system, models.settings_of(system, {RATE: rate, **plan.trial.settings}))
            if tried.reason:
                _say(tried.reason)
            else:
                scores[rate] = tried.result
        if not scores:
            raise CseError(tried.reason)
        best = max(scores, key=scores.__getitem__)
        _say(f"best of {len(rates)} learning rates ({system}): {best:g}, dev {scores[best]:.2f}")
        return best


def _compared(systems: Sequence[System], before: str, after: str) -> list[Compared]:
    """Compare two systems, by the names that their records begin with."""
    pair = [
        replace(next(one for one in systems if one.first.name.split("-")[0] == name), name=name)
        for name in (before, after)
    ]
    return [one for _, _, found in comparisons(pair, before) for one in found]


def _say(line: str) -> None:
    click.echo(line, err=True)
