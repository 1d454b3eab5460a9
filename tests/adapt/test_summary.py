"""What an adaptation says first, how often that is wrong, what its report shows, and what held-out rows choose."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cse.adapt.ladder import BARE, DOCUMENTS, FEW_ROWS, LABELS, PROMPTS, QUERY_MAP, Ladder, Tried
from cse.adapt.models import Models
from cse.adapt.run import Adapted
from cse.adapt.verdict import MOST, change_tables, summary
from cse.data.store import TRAIN_FILE, PreparedData, write_rows
from cse.data.tasks.kinds import LabelledTexts
from cse.data.tasks.store import OWN, open_dev, open_tasks, write_tasks
from cse.evaluation.comparison import STS, Compared, Comparison
from cse.evaluation.record import ITEMS_FILE, write_items
from cse.ledger import Ledger
from cse.report.systems import System
from cse.settings import Settings
from cse.settings.load import settings_with
from tests.rows import write_table
from tests.tiny import write_report

MAIN = ("intents", "kNN")


def one(measure: str, difference: float, z: float, task: str = "intents", *, seeds: int = 3) -> Compared:
    """A difference of so many standard errors, with interval and p."""
    half = abs(difference / z) * 1.959964
    p = math.erfc(abs(z) / math.sqrt(2))
    low, high = difference - half, difference + half
    found = Comparison(50, 50 + difference, low, high, p, 3080, (1, seeds), one_training=seeds == 1)
    return Compared(task, measure, measure == "kNN", found)


def ladder(**devs: float | tuple[float | None, ...] | None) -> Ladder:
    """What was tried, with the scores on held-out rows of its seeds."""
    made = Ladder()
    for name, found in devs.items():
        for number, dev in enumerate(found if isinstance(found, tuple) else (found,)):
            made.add(name, f"{name}-{42 + number}", dev, seconds=3)
    return made


def system(name: str, task: str, values: dict[str, float], **more) -> System:
    return System(name, (SimpleNamespace(name=name, scores={"tasks": {task: {"values": values}}}, **more),))


def adapted(ladder: Ladder, chosen: Tried, **facts) -> Adapted:
    usual = {"systems": [], "won": [], "notes": [], "kind": LABELS, "main": MAIN}
    return Adapted(folder=Path("out"), ladder=ladder, chosen=chosen, seconds=60, **(usual | facts))


def said(*won: Compared) -> list[str]:
    made = ladder(backbone=50.0, prompts=70.0, full=60.0)
    return summary(adapted(made, made.tried[PROMPTS], won=list(won), model=PROMPTS, dev=70.0)).splitlines()


@pytest.mark.parametrize(
    ("own", "first"),
    [
        ([one("kNN", 1.0, 3)], "It helped: intents kNN rose by 1.00."),
        ([one("kNN", 1.0, 3, seeds=1)], "It helped: intents kNN rose by 1.00; holds for this one training only."),
        ([one("kNN", -1.0, -3), one("MAP", 9, 9)], "It did not help: intents kNN fell by 1.00."),
        ([one("kNN", -1.0, -3), one("P", -1, -4, "manual")], "kNN fell by 1.00, and manual P fell by 1.00."),
        ([one("kNN", 1.0, 3), one("MAP", -1, -4), one("probe", -2, -4), one("Spearman, Avg.", -3, -9, STS)],
         "kNN rose by 1.00, but MAP fell by 1.00, probe by 2.00, general similarity (STS) by 3.00."),
        ([one("kNN", 0.6, 1.5), one("MAP", 13.84, 20), one("probe", -1, -3)],
         "It made no difference on intents kNN that 3,080 items can show, and probe fell by 1.00."),
        ([one("kNN", 0.6, 1.5), one("MAP", 2.0, 2.1), one("probe", -1, -2.1)],  # p 0.036, twice that for two
         "It made no difference on intents kNN that 3,080 items can show."),
    ],
)  # fmt: skip
def test_the_first_line_is_about_the_main_measure_and_what_fell(own, first):
    assert said(*own)[0].endswith(first)


def test_the_other_lines_are_corrected_for_their_number():
    lines = said(one("kNN", 1.0, 2.1), one("MAP", 2.0, 2.1), one("Spearman, Avg.", 3, 2.1, STS))
    assert "kNN: 50.00 -> 51.00, better by 1.00; " in lines[1] and "p 0.036, 3,080 items" in lines[1]
    assert "MAP: 50.00 -> 52.00, no difference at this size (+2.00); " in lines[2]
    assert "p 0.036 (0.071 corrected), 3,080" in lines[2]
    assert lines[3].startswith("general similarity: STS Spearman, Avg.: 50.00 -> 53.00, no difference at this size")


def test_a_choice_that_did_worse_is_not_shipped_and_a_bare_one_says_so_first():
    made = ladder(backbone=50.0, full=60.0)
    bare, full = made.tried.values()
    fell = adapted(made, full, won=[one("kNN", -1.0, -3)], model=BARE)
    lines = summary(fell).splitlines()
    assert lines[0] == "It did not help: intents kNN fell by 1.00."
    assert "in the bundle: the bare backbone, since full fine-tuning did worse" in lines
    whole = summary(replace(fell, won=[one("kNN", 1.0, 3)], model="full-42"))
    assert "\nin the bundle: full-42 (full fine-tuning); " in whole, "trained on all rows it has no score of its own"
    systems = [system(name, "intents", {"kNN": 91.0}) for name in (BARE, "full-42")]
    lines = summary(replace(fell, chosen=bare, won=[], systems=systems)).splitlines()
    assert lines[:2] == [
        "Nothing that was tried beats the bare backbone on held-out rows: keep it.", "  intents kNN: 91.00",
    ]  # fmt: skip
    assert "in the bundle: the bare backbone" in lines


def test_the_accuracy_of_the_bare_backbone_has_an_interval(tmp_path):
    np.savez(tmp_path / ITEMS_FILE, **{"tasks/intents/accuracy": np.array([100.0] * 15 + [0.0] * 3)})
    made, systems = ladder(backbone=50.0), [system(BARE, "intents", {"accuracy": 83.3}, folder=tmp_path)]
    found = adapted(made, made.tried[BARE], systems=systems, model=BARE, main=("intents", "accuracy"))
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
    better = values | {"nDCG@10": 48.0, "nDCG@10 with words": 58.7}
    systems = [system(BARE, "cacm", values), system(QUERY_MAP, "cacm", better)]
    facts = {"main": ("cacm", "nDCG@10"), "kind": DOCUMENTS, "systems": systems, "model": QUERY_MAP}
    found = adapted(made, made.tried[QUERY_MAP], won=[one("nDCG@10", 7.0, 3, "cacm")], **facts)
    lines = summary(found).splitlines()
    assert lines[0] == "It helped: cacm nDCG@10 rose by 7.00."
    assert lines[1] == "cacm nDCG@10: words alone 50.00; vectors 41.00 -> 48.00; words and vectors 55.90 -> 58.70"
    assert any(line.startswith("in the bundle: query_map (adapted queries); documents keep") for line in lines)
    none = summary(replace(found, won=[one("nDCG@10", -0.2, -0.5, "cacm")], model=BARE))
    assert "in the bundle: the bare backbone, since adapted queries found no more" in none


# ---- what held-out rows choose --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devs", "chosen"),
    [
        ({BARE: 50.0, "head": 70.0, PROMPTS: 60.0, "prompts_head": 69.9}, "head"),
        ({BARE: 50.0, "head": 50.0, PROMPTS: 50.0}, BARE),  # the cheaper of equal ones
        ({BARE: 50.0, PROMPTS: 99.9997, "prompts_head": 99.9999}, PROMPTS),  # equal as they are shown
        ({BARE: 50.0, PROMPTS: (40.0, 70.0)}, PROMPTS),  # the mean of its seeds
        ({BARE: 60.0, PROMPTS: (40.0, 70.0)}, BARE),
        ({"head": 70.0, PROMPTS: 60.0, "prompts_head": 75.0, "full": 80.0, "full_head": 78.0}, "full"),
        ({"head": 70.0, PROMPTS: 60.0, "prompts_head": 85.0, "full": 80.0, "full_head": 83.0}, "prompts_head"),
        ({BARE: None, PROMPTS: (None, None)}, PROMPTS),  # nothing selects
        ({BARE: None, PROMPTS: None, "full": None}, "full"),
    ],
)  # fmt: skip
def test_the_best_on_held_out_rows_and_of_equal_ones_the_cheaper(devs, chosen):
    assert ladder(**devs).choice() == chosen


def test_the_model_of_the_best_seed_is_the_one_to_ship():
    made = ladder(head=80.0, prompts=(60.0, 71.5, 71.5))
    assert made.tried[PROMPTS].best == "prompts-43"
    assert made.dev_of("prompts-42") == 60.0, "a model's own score, no other's"
    assert str(made.tried[PROMPTS]) == "prompts: dev 67.67, mean of 3 seeds, 9 s"


@pytest.mark.parametrize("kind", [LABELS, FEW_ROWS])
def test_what_picks_does_not_compare_and_where_last_weights_are_kept_nothing_picks(
    tmp_path, tiny_folders, monkeypatch, kind
):
    """A fifth of the labelled texts is held out to choose, and a fifth to measure."""
    out, compared = tmp_path / "out", []
    rows = [(f"text {n}", f"label {n % 3}") for n in range(120)]
    path = write_table(tmp_path / "labels.csv", ("text", "label"), rows)
    values = {
        "data.source": "files", "data.view": "categories", "data.train_path": str(path), "data.hold_out": 0.2,
        "data.dev": "own", "objective.energy_hinge.weight": 0.0, "train.dev_measure": "MAP",
        "backbone.name": str(tiny_folders["bert"]), "train.device": "cpu", "evaluation.device": "cpu",
    }  # fmt: skip
    models = Models(settings_with(Settings(), values), out, Ledger(out / "ledger"), kind)
    models.prepare()
    dev = SimpleNamespace(value=1.0)
    monkeypatch.setattr("cse.adapt.models.score_dev", lambda encoder, task, *_: compared.append(task) or dev)
    models.train("backbone", models.settings_of("backbone"))
    held_out, seen = (open_dev(PreparedData(each)) for each in (models.data, models.trained_on))
    (task,) = compared
    assert models.selects and not open_tasks(PreparedData(models.trained_on), OWN)
    assert models.ladder.tried["backbone"].devs == [1.0]
    assert task.reference == held_out.reference
    if kind == FEW_ROWS:
        assert seen is None and task.test == held_out.test
    else:
        assert sorted(seen.test + task.test) == sorted(held_out.test) and min(len(seen.test), len(task.test)) >= 8
        assert seen.reference == held_out.reference


# ---- texts that it helped and harmed --------------------------------------------------------------------------------

CARD, FEE, RATE = 0, 1, 2  # in alphabetical order
RIGHT = np.tile([CARD, RATE, FEE], 20)


def test_texts_that_became_right_and_those_that_became_wrong_with_what_they_were_taken_for(tmp_path):
    """The most frequent confusion first: before, cards were taken for fees and two rates for cards."""
    before, after = RIGHT.copy(), RIGHT.copy()
    before[RIGHT == CARD] = FEE
    before[[1, 4]] = CARD
    after[[59, 5]] = RATE
    task = LabelledTexts("intents", ["x"], ["card"], [f"question {n}" for n in range(60)], ["card", "rate", "fee"] * 20)
    (tmp_path / "prepared").mkdir()
    write_rows(tmp_path / "prepared" / TRAIN_FILE, "pairs", [("a", "b")])
    write_tasks(tmp_path / "prepared", own=[task])
    write_report(tmp_path / "prepared", "pairs", 1)
    records = [SimpleNamespace(name=name, folder=tmp_path / name) for name in (BARE, "prompts_head-42")]
    for record, labels in zip(records, (before, after), strict=True):
        record.folder.mkdir()
        items = {"kNN": 100.0 * (labels == RIGHT), "kNN label": labels}
        write_items(record.folder / ITEMS_FILE, {"tasks/intents": items})
    systems = [SimpleNamespace(records=records)]
    tables = change_tables(SimpleNamespace(folder=tmp_path, systems=systems, main=MAIN, model=records[1].name))
    helped, harmed, confusions = ([list(line) for line in table.lines] for table in tables)
    assert [table.title for table in tables[:2]] == ["Texts that it helped: 22 of 60", "Texts that it harmed: 2 of 60"]
    assert len(helped) == MOST
    assert helped[:2] == [["question 0", "card", "fee"], ["question 3", "card", "fee"]]
    assert all(row[1:] == ["card", "fee"] for row in helped), "the two rates come last, beyond the twenty"
    assert harmed == [["question 5", "fee", "rate"], ["question 59", "fee", "rate"]]
    assert confusions == [["fee", "rate", "0", "2"], ["card", "fee", "20", "0"], ["rate", "card", "2", "0"]]
