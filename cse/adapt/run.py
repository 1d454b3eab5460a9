"""Adapt a backbone to a user's own text: rows, a ladder of models from cheap to dear, a choice, measures, bundle.

``adapt`` reads from top to bottom. A killed adaptation goes on: finished steps are not repeated, the training that was
running resumes, and what the clock decided is on record before it is acted on, so the models are those of an
undisturbed one. What held-out rows chose is there before a test set is opened.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cse.adapt.backbones import NOTHING_HELD_OUT, choose_backbone, files_of_backbones
from cse.adapt.clock import TooShortError, TrainingPlan, Workload, make_plan
from cse.adapt.documents import JUDGED, Judged, index_documents
from cse.adapt.few import classify_few
from cse.adapt.ladder import BARE, DOCUMENTS, FEW_ROWS, HEAD, LABELS, QUERY_MAP, RUNGS, Ladder, Tried, rungs_of
from cse.adapt.look import Found
from cse.adapt.models import ALL_ROWS, ON_ALL_ROWS, Models, say
from cse.errors import CseError, Interrupted
from cse.evaluation.comparison import Compared
from cse.evaluation.score import CLASS_PROBABILITY
from cse.files import fingerprint
from cse.ledger import Ledger, OtherPlanError
from cse.model.backbone_files import find_backbone
from cse.model.declared import languages_of
from cse.outputs import Kind, check_folder, check_place
from cse.report.comparisons import comparisons
from cse.report.systems import System, find_records, group
from cse.runtime.kept_vectors import KeptVectors
from cse.settings import Settings
from cse.settings.load import flatten, settings_with
from cse.settings.model import BackboneSettings
from cse.stages.place import steps_of
from cse.stages.prepare import files_of
from cse.training.ready import depends_on

BEGUN, PLAN = "adaptation", "plan"  # names of records
WHOLE, SHORT, STOPPED = "whole", "short", "stopped"  # how a ladder ends
_ELSEWHERE = "name another folder with --out"


@dataclass(frozen=True)
class Adapted:
    """The result of an adaptation."""

    folder: Path
    kind: str  # of text
    systems: list[System]  # that were measured
    main: tuple[str, str] | None  # task and measure that say whether it helped, named before training
    ladder: Ladder
    chosen: Tried
    won: list[Compared]  # what was chosen with the bare backbone; empty if that was chosen
    model: str  # in the bundle
    seconds: float
    notes: list[str]
    stopped: bool = False  # by the user, before the ladder's end
    dev: float | None = None  # of the model in the bundle; None: nothing was held out, or it was trained on that too
    indexed: str = ""  # what came of the documents' index, in words


def adapt(
    settings: Settings,
    found: Found,
    out: Path,
    *,
    budget: float,
    own_backbone: bool = False,
    judged: bool = False,
    use: str | None = None,
    label_names: Path | None = None,
    rivals: Sequence[BackboneSettings] = (),
    again: bool = False,
) -> Adapted | str:
    """Do what is not done yet; Ctrl-C ends the ladder once it has a second rung, and the best so far is taken.

    Args:
        budget: seconds.
        use: what labelled texts are for, see ``Models``.
        rivals: backbones that compete with that of the settings, see ``choose_backbone``.
        again: whether to set another adaptation in the folder aside in place of refusing it.

    Returns:
        The result; in words where rows were too few to train on.
    """
    if settings.train.parameters == "none":
        raise CseError("train.parameters: none leaves nothing to adapt; choose prompts or full")
    begun, asked = time.monotonic(), {"budget": budget, "own_backbone": own_backbone}
    described = fingerprint({}, [] if label_names is None else [label_names])
    own = {"--for": use, "--label-names": described} | files_of_backbones(rivals)
    unlabelled = (found.kind == DOCUMENTS and not judged) or settings.mine.neighbours
    if rivals and (unlabelled or (found.few is not None and not found.few.reference)):
        raise CseError(NOTHING_HELD_OUT)
    ledger = open_ledger(out, settings, asked, own, again=again)
    if found.few is not None:
        return classify_few(settings, found, found.few, out, label_names, rivals, ledger)
    before = seconds_on_record(out)
    say(found.told)

    # the rows, and the measure that says whether it helped, before anything is trained
    queries = Judged(settings.data, out) if judged else None
    if queries is not None:
        say(ledger.run(JUDGED, queries.write, makes=[queries.folder]).result)
        settings = settings_with(settings, queries.choosing)
    few = found.kind == LABELS and settings.train.dev_measure == CLASS_PROBABILITY
    kept = KeptVectors(out / "vectors") if found.kind == DOCUMENTS else None
    models = Models(settings, out, ledger, FEW_ROWS if few else found.kind, use, label_names, kept)
    models.prepare()
    settings, notes = choose_backbone(settings, rivals, models.dev, models.chooses_by, ledger)
    models = replace(models, settings=settings)
    notes += _other_language(settings, found)
    main = models.main_measure()
    untold = models.kind == DOCUMENTS and queries is None and main is None  # nothing says what finds more

    # the ladder, and what held-out rows or judged queries choose, on record before a test set is opened
    rungs = [BARE] if untold else [*rungs_of(models.kind, own_backbone=own_backbone)]
    ended = _climb_in_time(models, rungs, asked, main, notes)

    def choose() -> str:  # nothing that stands for a search chooses without judged queries
        plain = models.kind == DOCUMENTS and queries is None and not untold
        guarded = models.kind == LABELS  # of few rows accuracy moves by chance
        return QUERY_MAP if plain else models.ladder.choice(guarded=guarded)

    system = ledger.run("choice", choose).result if ended == WHOLE else choose()
    chosen = models.ladder.tried[system]
    final, said = (models, "") if ended == STOPPED else _train_again(models, queries, system)

    # the measures
    measured, won = list[System](), list[Compared]()
    if models.measures:
        names = dict.fromkeys([BARE, *chosen.models])
        for name in names:
            final.measure(name)
        measured = group(find_records([final.record_of(name) for name in names]))
        won = [] if system == BARE else _compared(measured, BARE, system)

    # the bundle: what was chosen, or the bare backbone if that did better
    fell = any((one.task, one.measure) == main and did_worse(one, models.kind) for one in won)
    model = BARE if fell else chosen.best
    if said:
        where = "" if fell else " and in the bundle"
        notes.append(f"{said}; what is measured{where} was {_word(system)} again, on them too")
    final = final if model in final.made else models  # the bare backbone has no rows
    final.export(model, out, models)
    indexed = index_documents(settings.data, out, models.kept) if models.kind == DOCUMENTS else ""
    total = round(before + time.monotonic() - begun, 3)
    return Adapted(
        folder=out,
        kind=models.kind,
        systems=measured,
        main=main,
        ladder=models.ladder,
        chosen=chosen,
        won=won,
        model=model,
        seconds=ledger.run("total", lambda: total).result if ended == WHOLE else total,
        notes=notes,
        stopped=ended == STOPPED,
        dev=final.ladder.dev_of(model),
        indexed=indexed,
    )


def seconds_on_record(out: Path) -> float:
    """Return the time that all runs of an adaptation took."""
    ledgers = (Ledger(out / "ledger"), Ledger(out / ALL_ROWS / "ledger"))
    return sum(record.seconds for one in ledgers for name in one.names() if (record := one.read(name)) is not None)


def open_ledger(
    folder: Path, settings: Settings, asked: Mapping[str, Any], own: Mapping[str, Any], *, again: bool
) -> Ledger:
    """Return the ledger of an adaptation, a new one in an empty folder.

    Args:
        asked: what the plan follows from; once there is one, a folder planned for something else is refused.
    """
    text = {"the text": fingerprint({}, files_of(settings.data))}
    of = flatten(settings.model_dump(mode="json")) | text | depends_on(settings) | dict(own)
    ledger = Ledger(folder / "ledger", _ELSEWHERE)
    otherwise = f"{_ELSEWHERE}, or set this adaptation aside with --again"
    try:
        begun = ledger.check(BEGUN, of, str(folder), otherwise)
        ledger.check(PLAN, asked, str(folder), otherwise)
    except OtherPlanError:
        if not again:
            raise
        place, begun = check_place(folder), None
        aside = next(one for n in count(1) if not (one := place.with_name(f"{place.name}-{n}")).exists())
        place.rename(aside)
        say(f"the earlier adaptation is in {aside} now; delete it when you no longer need it")
    if begun is None and folder.is_dir() and any(folder.iterdir()):
        raise CseError(f"{folder}: holds something else; {_ELSEWHERE}")
    check_folder(folder / "report", Kind.REPORT)
    ledger.run(BEGUN, lambda: None, of=of)
    return ledger


def did_worse(one: Compared, kind: str) -> bool:
    """Return whether a comparison keeps the bare backbone; a search without any gain does."""
    return one.comparison.verdict == "worse" or (kind == DOCUMENTS and one.comparison.difference <= 0)


def _other_language(settings: Settings, found: Found) -> list[str]:
    """Return a note, and say it, if the text is in a language that the backbone's card does not name."""
    backbone, language = settings.backbone, found.language
    known = languages_of(find_backbone(backbone.name, backbone.revision).folder)
    if language is None or not known or any(code.split("-")[0] == language for code in known):
        return []
    note = (
        f"the text is in another language ({language}) than {backbone.name} was trained on ({', '.join(known)}); "
        "prompts cannot teach it one: choose a backbone that reads it (-s backbone.name=...)"
    )
    say(f"note: {note}")
    return [note]


def _climb_in_time(
    models: Models, rungs: Sequence[str], asked: Mapping[str, Any], main: tuple[str, str] | None, notes: list[str]
) -> str:
    """Climb as far as the budget and the user let it, and return how it ended."""
    try:
        notes += _climb(models, rungs, asked, main)
    except TooShortError as short:
        cheap = {LABELS: HEAD, FEW_ROWS: BARE, DOCUMENTS: QUERY_MAP}.get(models.kind)
        if cheap is None:
            raise
        say(f"{short}; {RUNGS[cheap].words}: that is what there is time for")
        dear = next(RUNGS[name].words for name in rungs if RUNGS[name].steps)
        notes.append(f"the budget allowed no {dear}: {short}")
        return SHORT
    except (KeyboardInterrupt, Interrupted) as stop:
        by_hand = not isinstance(stop, Interrupted) or stop.number == signal.SIGINT
        if not by_hand or len(models.ladder.tried) < 2:
            raise
        say("stopped: the best so far is measured and exported; Ctrl-C again ends without it")
        return STOPPED
    return WHOLE


def _climb(
    models: Models, rungs: Sequence[str], asked: Mapping[str, Any], main: tuple[str, str] | None
) -> Sequence[str]:
    """Add one rung after the other; return what the user should know of it."""
    measuring = models.measure(BARE) if models.measures else 0.0
    trained = [name for name in rungs if RUNGS[name].steps]
    heads = {RUNGS[name].head_of: name for name in rungs if RUNGS[name].head_of}
    for name in rungs:
        if not RUNGS[name].steps and not RUNGS[name].head_of:
            models.train(name, models.settings_of(name))
            say(f"{models.ladder.tried[name]}")
    if not trained:
        return ()
    if HEAD in models.ladder.tried:
        measuring += models.ladder.tried[HEAD].seconds  # a head is fitted behind each model
    plan = _plan(models, trained, asked, measuring)
    say(f"plan: {plan}" + (f"; whether it helps is measured by {' '.join(main)}" if main else ""))
    for name in plan.systems:
        settings = models.settings_of(name, plan.settings)
        for number in range(plan.seeds):
            own = settings_with(settings, {"train.seed": settings.train.seed + number})
            models.train(name, own)
            if name in heads:
                models.fit_head(name, own)
        for each in (name, heads.get(name)):
            if each is not None:
                say(f"{models.ladder.tried[each]}")
    left_out = (RUNGS[name].words for name in trained if name not in plan.systems)
    return [*plan.notes, *(f"the budget allowed no {words}" for words in left_out)]


def _train_again(models: Models, queries: Judged | None, system: str) -> tuple[Models, str]:
    """Train what was chosen on what chose too: judged queries, or held-out rows where rows are few; say which."""
    if queries is not None and system != BARE:
        said, values = "judged queries chose", queries.training
    elif models.kind == FEW_ROWS and models.held_out:
        said, values = f"{models.held_out:.0%} of the labelled rows were held out to choose", ON_ALL_ROWS
    else:
        return models, ""
    say(f"{said}: what they chose is {_word(system)} again, on them too")
    return models.again(system, values), said


def _word(system: str) -> str:
    return "fitted" if system == BARE else "trained"  # behind the bare backbone, its classifier


def _plan(models: Models, systems: Sequence[str], asked: Mapping[str, Any], measuring: float) -> TrainingPlan:
    """Return the plan; what it asks of this machine is forgotten if the budget is too short for any."""
    train, paces = models.settings.train, {system: models.pace(system) for system in systems}

    def plan() -> dict[str, Any]:
        work = Workload(
            models.kind,
            paces,
            measuring=measuring,
            epochs=train.epochs,
            steps=lambda epochs: steps_of(settings_with(models.settings, {"train.epochs": epochs}), models.data),
            max_steps=train.max_steps,
            selects=models.selects and models.kind != DOCUMENTS,
        )
        return asdict(make_plan(work, budget=asked["budget"], spent=seconds_on_record(models.folder)))

    try:
        return TypeAdapter(TrainingPlan).validate_python(models.ledger.run(PLAN, plan, of=asked).result)
    except CseError:  # another attempt may find a machine that is less busy
        models.ledger.forget(*(f"time {system}" for system in systems))
        raise


def _compared(systems: Sequence[System], before: str, after: str) -> list[Compared]:
    """Compare two systems, by the names that their records begin with."""
    pair = [
        replace(next(one for one in systems if one.first.name.split("-")[0] == name), name=name)
        for name in (before, after)
    ]
    return [one for _, _, found in comparisons(pair, before) for one in found]
