"""Systems against their bare backbone, from records on disk: seeds together, own tasks first, STS as a whole."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from cse.data.tasks.kinds import Triplets
from cse.errors import CseError
from cse.evaluation.comparison import compared_rows
from cse.evaluation.suite import evaluate_suite
from cse.report.comparisons import comparisons
from cse.report.page import as_html, make_report
from cse.report.systems import find_records, group
from tests.cli.conftest import cse  # noqa: F401 - a fixture
from tests.report.made_up import BARE, Words, make_data, make_record, trained

MEASURES = ("sts", "tasks")
TRIPLETS = Triplets(
    "mine", [f"a{i} b{i}" for i in range(31)], [f"a{i} c{i}" for i in range(31)], [f"d{i} b{i % 7}" for i in range(31)]
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Records with a task of the user's own: the backbone, and one system with three seeds."""
    folder = tmp_path_factory.mktemp("own")
    data = make_data(("STS-B", "SICK-R")).with_tasks([TRIPLETS])
    make_record(folder, "backbone", BARE, data=data, measures=MEASURES)
    for seed in (1, 2, 3):
        make_record(folder, f"prompts-{seed}", trained(seed), seed=seed, data=data, measures=MEASURES)
    return folder


def test_seeds_of_a_system_are_compared_together_with_its_bare_backbone(own):
    ((before, after, results),) = comparisons(group(find_records([own])))
    assert (before.name, after.name) == ("backbone", "prompts")
    assert [(one.task, one.measure, one.main) for one in results] == [
        ("mine", "accuracy", True), ("STS", "Spearman, mean of 2 tasks", True),
    ]  # fmt: skip
    found = results[0].comparison
    data = make_data(("STS-B",)).with_tasks([TRIPLETS])
    scores = {s: evaluate_suite(Words(s), data, measures=("tasks",)).tasks["mine"].values["accuracy"] for s in range(4)}
    assert found.before == pytest.approx(scores[0])
    assert found.after == pytest.approx(np.mean([scores[seed] for seed in (1, 2, 3)]))
    assert (found.items, found.seeds) == (31, (1, 3))
    assert results[1].comparison.items == 80
    expected = np.mean([record.scores["mean of 2 tasks"]["all"] for record in after.records])
    assert results[1].comparison.after == pytest.approx(expected, abs=0.01)


def test_the_report_has_a_row_per_comparison_and_begins_with_the_verdict_in_words(own):
    report = make_report(group(find_records([own])), papers=False)
    rows = report.further[-1].lines
    assert [row[:4] for row in rows] == [
        ("prompts", "backbone", "mine", "accuracy"), ("prompts", "backbone", "STS", "Spearman, mean of 2 tasks"),
    ]  # fmt: skip
    verdicts = [row[4] for row in rows]
    assert set(verdicts) <= {"better", "worse", "no difference at this size"}
    for verdict in set(verdicts):
        assert f"{verdict} on {verdicts.count(verdict)}" in report.verdict
    assert report.verdict.startswith("prompts against backbone: ") and report.verdict.endswith(" measures")
    page = as_html(report)
    assert page.index(report.verdict) < page.index('id="comparisons"') < page.index('id="systems-section"')
    once = make_report(group(find_records([own / "backbone", own / "prompts-1"])), papers=False)
    assert once.verdict.endswith(" measures; this one training only")
    alone = make_report(group(find_records([own / "backbone"])), papers=False)
    assert (alone.verdict, alone.further) == ("", ())


def test_the_command_says_it_in_words_and_numbers(own, cse, tmp_path):  # noqa: F811
    done = cse("compare", own, "--json", tmp_path / "found.json")
    assert done.code == 0, done.err
    head, *lines = done.out.splitlines()
    assert head == "prompts (3 seeds) against backbone (no seed)"
    assert any("no difference at this size" in line or "better" in line or "worse" in line for line in lines)
    (tree,) = json.loads((tmp_path / "found.json").read_text())["comparisons"]
    assert (tree["before"], tree["after"]) == ("backbone", "prompts")
    assert [one["seeds"] for one in tree["results"]] == [[1, 3], [1, 3]]


def test_an_unknown_baseline_and_records_of_other_data_are_refused(own, cse, tmp_path):  # noqa: F811
    line = cse("compare", own, "--baseline", "backbon").refused()
    assert "no system 'backbon'; one of backbone, prompts; did you mean 'backbone'?" in line
    shutil.copytree(own / "backbone", tmp_path / "backbone")
    other = Triplets("mine", TRIPLETS.anchor[1:], TRIPLETS.positive[1:], TRIPLETS.negative[1:])
    make_record(
        tmp_path, "prompts-1", trained(1), seed=1, data=make_data(("STS-B",)).with_tasks([other]), measures=MEASURES
    )
    with pytest.raises(CseError, match="measured on 31 items, the other on 30"):
        comparisons(group(find_records([tmp_path])))


def other_order(task):
    return replace(task, **{side: getattr(task, side)[::-1] for side in ("anchor", "positive", "negative")})


def other_texts(task):
    return replace(task, anchor=[text.replace("a", "z") for text in task.anchor])


@pytest.mark.parametrize("change", [other_order, other_texts])
def test_as_many_items_that_are_others_are_refused(own, tmp_path, change):
    """Items are paired by their place, so one in another order would be compared with a stranger."""
    shutil.copytree(own / "backbone", tmp_path / "backbone")
    data = make_data(("STS-B",)).with_tasks([change(TRIPLETS)])
    make_record(tmp_path, "prompts-1", trained(1), seed=1, data=data, measures=MEASURES)
    with pytest.raises(CseError, match="measured on 31 items, the other on 31 or on others; evaluate both on the same"):
        comparisons(group(find_records([tmp_path])))
    shutil.rmtree(tmp_path / "backbone")
    make_record(tmp_path, "backbone", BARE, data=data, measures=MEASURES)
    shutil.copytree(own / "prompts-2", tmp_path / "prompts-2")
    with pytest.raises(CseError, match="mine: seeds of one model were measured on different items"):
        comparisons(group(find_records([tmp_path])))


def test_one_training_says_so(own, tmp_path):
    for name in ("backbone", "prompts-1"):
        shutil.copytree(own / name, tmp_path / name)
    ((_, _, results),) = comparisons(group(find_records([tmp_path])))
    assert results[0].sentence().endswith("31 items; holds for this one training only")
    assert compared_rows(results)[1][2].endswith(", this one training only")
    ((_, _, three),) = comparisons(group(find_records([own])))
    assert not any("this one training" in text for text in (three[0].sentence(), *compared_rows(three)[1]))


def test_a_backbone_behind_other_task_texts_is_no_baseline(own):
    bare, system = group(find_records([own]))
    first = system.first
    asks = replace(first, scores=first.scores | {"reads": {"texts": {"query": "q: "}}})
    with_texts = replace(system, records=(asks,))
    assert comparisons([bare, with_texts]) == []
    as_it = replace(bare, name="as it", records=(replace(bare.first, scores=bare.first.scores | asks.scores),))
    assert [before.name for before, _, _ in comparisons([bare, as_it, with_texts])] == ["as it"]
