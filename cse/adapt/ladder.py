"""The ladder of an adaptation: rungs from the cheapest to the dearest as data, what came of each, and the choice."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# the kinds of text, which have their own rungs and ways to spend the time
TEXT, LABELS, FEW_ROWS, DOCUMENTS = "text", "labels", "few rows", "documents"
CLASSIFY, SEARCH = "classify", "search"  # what labelled texts are for

RATE = "train.learning_rate"
BARE, HEAD, PROMPTS, PROMPTS_HEAD, FULL, FULL_HEAD = "backbone", "head", "prompts", "prompts_head", "full", "full_head"
QUERY_MAP = "query_map"
WITH_HEAD = {"post.kind": "linear"}
_NO_PROMPT = {"prompt.kind": "none", "prompt.length": 0}
_UNTRAINED = {**_NO_PROMPT, "train.parameters": "none", "pooler.kind": None, "pooler.mlp": "none"}


@dataclass(frozen=True)
class Rung:
    """A kind of model.

    Attributes:
        words: what it is called on the screen.
        of: the kinds of text that it is for.
        trains: settings on top of the adaptation's.
        steps: whether steps are trained, so that seeds matter.
        kinds: settings on top of these by kind of text.
        head_of: the rung behind whose models it is fitted as a head; empty: it stands alone.
        own_backbone: whether the backbone's weights change, so that no bank can serve it beside others.
    """

    words: str
    of: Sequence[str]
    trains: Mapping[str, Any] = field(default_factory=dict)
    steps: bool = False
    kinds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    head_of: str = ""
    own_backbone: bool = False


# A tie goes to the cheaper, which stands above. Of few rows a head costs accuracy, what chooses among them cannot
# compare it, and more steps or a higher rate cost accuracy too: see docs/results.md.
RUNGS = {
    BARE: Rung(
        "the bare backbone",
        (TEXT, LABELS, FEW_ROWS, DOCUMENTS),
        _UNTRAINED | {"prompt.side": "both", "post.kind": "none"},
    ),
    QUERY_MAP: Rung("adapted queries", (DOCUMENTS,), _UNTRAINED),
    HEAD: Rung("a head on the bare backbone", (LABELS,), _UNTRAINED | WITH_HEAD),
    PROMPTS: Rung("prompts", (TEXT, LABELS, FEW_ROWS), steps=True),
    PROMPTS_HEAD: Rung("prompts with a head", (LABELS,), WITH_HEAD, head_of=PROMPTS),
    FULL: Rung(
        "full fine-tuning",
        (TEXT, LABELS, FEW_ROWS),
        {**_NO_PROMPT, "train.parameters": "full"},
        steps=True,
        kinds={
            TEXT: {RATE: 5e-5},
            LABELS: {RATE: 2e-4},
            FEW_ROWS: {RATE: 1e-4, "train.start_share": 0.35},  # between both models it tells most, see docs/results.md
        },
        own_backbone=True,
    ),
    FULL_HEAD: Rung("full fine-tuning with a head", (LABELS,), WITH_HEAD, head_of=FULL, own_backbone=True),
}


def rungs_of(kind: str, *, own_backbone: bool) -> dict[str, Rung]:
    """Return the rungs for a kind of text; the whole model only if asked for."""
    return {name: rung for name, rung in RUNGS.items() if kind in rung.of and own_backbone >= rung.own_backbone}


@dataclass
class Tried:
    """What came of one rung.

    Attributes:
        models: their names, one per seed.
        devs: dev score times 100 of each model; None where nothing can be scored.
        accuracies: of each model's classifier on held-out rows, times 100; none where it chooses nothing.
    """

    system: str
    models: list[str] = field(default_factory=list)
    devs: list[float | None] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rung(self) -> Rung:
        """The kind of model."""
        return RUNGS[self.system]

    @property
    def dev(self) -> float | None:
        """Mean dev score of the models; None where nothing can be scored."""
        known = [dev for dev in self.devs if dev is not None]
        return statistics.fmean(known) if known and len(known) == len(self.devs) else None

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy of the models' classifiers; None where there are none."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def best(self) -> str:
        """The model with the best dev score, the first of equal ones."""
        return max(zip(self.models, self.devs, strict=True), key=lambda each: _or_lowest(each[1]))[0]

    def __str__(self) -> str:
        took = f"{self.seconds:.0f} s" if self.seconds < 100 else f"{self.seconds / 60:.0f} min"
        seeds = f", mean of {len(self.models)} seeds" if len(self.models) > 1 else ""
        right = "" if self.accuracy is None else f", accuracy {self.accuracy:.2f}"
        score = "no dev score" if self.dev is None else f"dev {self.dev:.2f}{right}{seeds}"
        return f"{self.rung.words}: {score}, {took}"


@dataclass
class Ladder:
    """What was tried so far, by the name of its rung."""

    tried: dict[str, Tried] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Tried]:
        """From the cheapest to the dearest."""
        return (self.tried[system] for system in RUNGS if system in self.tried)

    def add(self, system: str, model: str, dev: float | None, seconds: float, accuracy: float | None = None) -> None:
        """Add a model to its rung."""
        found = self.tried.setdefault(system, Tried(system))
        found.models.append(model)
        found.devs.append(dev)
        found.accuracies += [] if accuracy is None else [accuracy]
        found.seconds += seconds

    def dev_of(self, model: str) -> float | None:
        """Return the dev score of a model; None where nothing can be scored."""
        return next(dict(zip(one.models, one.devs, strict=True))[model] for one in self if model in one.models)

    def choice(self, *, guarded: bool = False) -> str:
        """Return the rung with the best dev score.

        If ``guarded``, none is chosen whose classifier is right less often than the bare backbone's, the cheapest.
        Of those equal in two decimals the cheaper; where no score is known, the dearest without a head.
        """
        bare, *_ = self
        least = _or_lowest(bare.accuracy if guarded else None)
        tried = [one for one in self if one.accuracy is None or one.accuracy >= least]
        if all(one.dev is None for one in tried):
            return next((one for one in reversed(tried) if "post.kind" not in one.rung.trains), tried[0]).system
        return max(tried, key=lambda one: round(_or_lowest(one.dev), 2)).system  # as it is shown


def _or_lowest(score: float | None) -> float:
    return -math.inf if score is None else score
