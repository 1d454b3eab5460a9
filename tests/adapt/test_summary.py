"""What an adaptation says first, and how often that is wrong."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cse.adapt.ladder import (
    BARE,
    DOCUMENTS,
    FULL,
    FULL_HEAD,
    HEAD,
    LABELS,
    PROMPTS,
    PROMPTS_HEAD,
    QUERY_MAP,
    Ladder,
    Tried,
)  # fmt: skip
from cse.adapt.run import Adapted
from cse.adapt.verdict import summary
from cse.evaluation.comparison import STS, Compared, Comparison
from cse.evaluation.record import ITEMS_FILE
from cse.report.systems import System

MAIN = ("intents", "kNN")


def one(measure: str, difference: float, z: float, task: str = "intents", *, seeds: int = 3) -> Compared:
    """A difference of so many standard errors, with interval and p."""
    half = abs(difference / z) * 1.959964
    p = math.erfc(abs(z) / math.sqrt(2))
    low, high = difference - half, difference + half
    found = Comparison(50, 50 + difference, low, high, p, 3080, (1, seeds), one_training=seeds == 1)
    return Compared(task, measure, measure == "kNN", found)


def said(*won: Compared, main: tuple[str, str] | None = MAIN) -> list[str]:
    ladder = Ladder()
    for system, dev in ((BARE, 50.0), (PROMPTS, 70.0), (FULL, 60.0)):
        ladder.add(system, system, dev, seconds=3)
    chosen = ladder.tried[PROMPTS]
    facts = {"won": list(won), "model": PROMPTS, "dev": 70.0}
    return summary(adapted(ladder, chosen, main=main, **facts)).splitlines()


def adapted(ladder: Ladder, chosen: Tried, **facts) -> Adapted:
    nothing = {"systems": [], "won": [], "notes": [], "kind": LABELS}
    return Adapted(folder=Path("out"), ladder=ladder, chosen=chosen, seconds=60, **(nothing | facts))


@pytest.mark.parametrize(
    ("own", "first"),
    [
        ([one("kNN", 1.0, 3)], "It helped: intents kNN rose by 1.00."),
        ([one("kNN", 1.0, 3, seeds=1)], "It helped: intents kNN rose by 1.00; holds for this one training only."),
        ([one("kNN", -1.0, -3), one("MAP", 9, 9)], "It did not help: intents kNN fell by 1.00."),
        ([one("kNN", -1.0, -3), one("P", -1, -4, "manual")], "kNN fell by 1.00, and manual P fell by 1.00."),
        (
            [one("kNN", 1.0, 3), one("MAP", -1, -4), one("probe", -2, -4), one("Spearman, Avg.", -3, -9, STS)],
            "kNN rose by 1.00, but MAP fell by 1.00, probe by 2.00, general similarity (STS) by 3.00.",
        ),
        (
            [one("kNN", 0.6, 1.5), one("MAP", 13.84, 20), one("probe", -1, -3)],
            "It made no difference on intents kNN that 3,080 items can show, and probe fell by 1.00.",
        ),
        (
            [one("kNN", 0.6, 1.5), one("MAP", 2.0, 2.1), one("probe", -1, -2.1)],  # p 0.036, twice that for two
            "It made no difference on intents kNN that 3,080 items can show.",
        ),
    ],
)
def test_the_first_line_is_about_the_main_measure_and_what_fell(own, first):
    assert said(*own)[0].endswith(first)


def test_the_other_lines_are_corrected_for_their_number():
    lines = said(one("kNN", 1.0, 2.1), one("MAP", 2.0, 2.1), one("Spearman, Avg.", 3, 2.1, STS))
    assert "kNN: 50.00 -> 51.00, better by 1.00; " in lines[1] and "p 0.036, 3,080 items" in lines[1]
    assert "MAP: 50.00 -> 52.00, no difference at this size (+2.00); " in lines[2]
    assert "p 0.036 (0.071 corrected), 3,080" in lines[2]
    assert lines[3].startswith("general similarity: STS Spearman, Avg.: 50.00 -> 53.00, no difference at this size")


def test_a_choice_that_did_worse_is_not_shipped_and_a_bare_one_says_so_first():
    ladder = Ladder()
    ladder.add(BARE, BARE, 50.0, seconds=3)
    ladder.add(FULL, "full-42", 60.0, seconds=3)
    bare, full = ladder.tried.values()
    fell = adapted(ladder, full, main=MAIN, won=[one("kNN", -1.0, -3)], model=BARE)
    lines = summary(fell).splitlines()
    assert lines[0] == "It did not help: intents kNN fell by 1.00."
    assert "in the bundle: the bare backbone, since full fine-tuning did worse" in lines
    whole = replace(fell, won=[one("kNN", 1.0, 3)], model="full-42")
    assert any("in the bundle: full-42 (full fine-tuning); " in line for line in summary(whole).splitlines()), (
        "trained again on all rows it has no score of its own, and not that of the model before"
    )
    scores = {"tasks": {"intents": {"values": {"kNN": 91.0}}}}
    systems = [System(name, (SimpleNamespace(name=name, scores=scores),)) for name in (BARE, "full-42")]
    lines = summary(replace(fell, chosen=bare, won=[], systems=systems)).splitlines()
    assert lines[0] == "Nothing that was tried beats the bare backbone on held-out rows: keep it."
    assert lines[1:3] == ["  intents kNN: 91.00", "tried, with the score on held-out rows that chose:"]
    assert "in the bundle: the bare backbone" in lines
    assert lines[-1].startswith("60 seconds; model out/bundle")


def test_the_accuracy_of_the_bare_backbone_has_an_interval(tmp_path):
    np.savez(tmp_path / ITEMS_FILE, **{"tasks/intents/accuracy": np.array([100.0] * 15 + [0.0] * 3)})
    record = SimpleNamespace(name=BARE, scores={"tasks": {"intents": {"values": {"accuracy": 83.3}}}}, folder=tmp_path)
    ladder = Ladder()
    ladder.add(BARE, BARE, 50.0, seconds=3)
    found = adapted(
        ladder, ladder.tried[BARE], main=("intents", "accuracy"), systems=[System(BARE, (record,))], model=BARE
    )
    assert summary(found).splitlines()[1] == "  intents accuracy: 83.3 %, 95 % interval 60.8 to 94.2: of 18 rows"


def test_without_a_true_difference_the_first_line_seldom_says_something():
    """Five measures that chance alone moves: the main one in 5 %, a fall of any other in 2.5 % (half of 5 %)."""
    rng = np.random.default_rng(1)
    lines = Counter()
    for z in rng.standard_normal((4000, 5)):
        names = ("kNN", "MAP", "probe", "F1", "accuracy")
        line = said(*(one(name, float(each), float(each)) for name, each in zip(names, z, strict=True)))[0]
        lines["main"] += not line.startswith("It made no difference")
        lines["rose"] += line.startswith("It helped")
        lines["others"] += ", but " in line or ", and " in line
    assert 0.04 < lines["main"] / 4000 < 0.06
    assert 0.018 < lines["rose"] / 4000 < 0.032
    assert 0.015 < lines["others"] / 4000 < 0.033


def test_a_search_is_told_by_vectors_words_and_both():
    made = ladder(backbone=None, query_map=None)
    values = {"nDCG@10": 41.0, "nDCG@10 with words": 55.9, "nDCG@10 of words": 50.0}

    def system(name: str, values: dict[str, float]) -> System:
        return System(name, (SimpleNamespace(name=name, scores={"tasks": {"cacm": {"values": values}}}),))

    systems = [system(BARE, values), system(QUERY_MAP, values | {"nDCG@10": 48.0, "nDCG@10 with words": 58.7})]
    facts = {"main": ("cacm", "nDCG@10"), "kind": DOCUMENTS, "systems": systems}
    won = [one("nDCG@10", 7.0, 3, "cacm")]
    lines = summary(adapted(made, made.tried[QUERY_MAP], won=won, model=QUERY_MAP, **facts)).splitlines()
    assert lines[0] == "It helped: cacm nDCG@10 rose by 7.00."
    assert lines[1] == "cacm nDCG@10: words alone 50.00; vectors 41.00 -> 48.00; words and vectors 55.90 -> 58.70"
    assert any(line.startswith("in the bundle: query_map (adapted queries); documents keep") for line in lines)
    won = [one("nDCG@10", -0.2, -0.5, "cacm")]
    lines = summary(adapted(made, made.tried[QUERY_MAP], won=won, model=BARE, **facts)).splitlines()
    assert "in the bundle: the bare backbone, since adapted queries found no more" in lines


# ---- what held-out rows choose --------------------------------------------------------------------------------------


def ladder(**devs: float | tuple[float | None, ...] | None) -> Ladder:
    made = Ladder()
    for system, found in devs.items():
        for number, dev in enumerate(found if isinstance(found, tuple) else (found,)):
            made.add(system, f"{system}-{42 + number}", dev, seconds=3)
    return made


@pytest.mark.parametrize(
    ("devs", "chosen"),
    [
        ({BARE: 50.0, HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 69.9}, HEAD),
        ({BARE: 50.0, HEAD: 50.0, PROMPTS: 50.0}, BARE),  # the cheaper of equal ones
        ({BARE: 50.0, PROMPTS: 99.9997, PROMPTS_HEAD: 99.9999}, PROMPTS),  # equal as they are shown
        ({BARE: 50.0, PROMPTS: (40.0, 70.0)}, PROMPTS),  # the mean of its seeds
        ({BARE: 60.0, PROMPTS: (40.0, 70.0)}, BARE),
        ({HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 75.0, FULL: 80.0, FULL_HEAD: 78.0}, FULL),
        ({HEAD: 70.0, PROMPTS: 60.0, PROMPTS_HEAD: 85.0, FULL: 80.0, FULL_HEAD: 83.0}, PROMPTS_HEAD),
        ({BARE: None, PROMPTS: (None, None)}, PROMPTS),  # nothing selects
        ({BARE: None, PROMPTS: None, FULL: None}, FULL),
    ],
)  # fmt: skip
def test_the_best_on_held_out_rows_and_of_equal_ones_the_cheaper(devs, chosen):
    assert ladder(**devs).choice() == chosen


def test_the_model_of_the_best_seed_is_the_one_to_ship():
    made = ladder(head=80.0, prompts=(60.0, 71.5, 71.5))
    assert made.tried[PROMPTS].best == "prompts-43"
    assert made.dev_of("prompts-42") == 60.0, "a model's own score, no other's"
    assert str(made.tried[PROMPTS]) == "prompts: dev 67.67, mean of 3 seeds, 9 s"
