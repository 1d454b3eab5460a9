"""Systems against their bare backbone, from records on disk: seeds together, own tasks first, STS as a whole."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from cse.data.tasks.kinds import Triplets
from cse.evaluation.suite import evaluate_suite
from cse.report.comparisons import comparisons
from cse.report.page import as_html, make_report
from cse.report.systems import find_records, group
from tests.parts import refusal
from tests.report.made_up import BARE, Words, make_data, make_record, trained

ROWS = [(f"a{i} b{i}", f"a{i} c{i}", f"d{i} b{i % 7}") for i in range(31)]


def triplets(rows) -> Triplets:
    return Triplets("mine", *map(list, zip(*rows, strict=True)))


def write_own(folder, name, model, seed, task, sts=("STS-B",)):
    data = make_data(sts).with_tasks([task])
    make_record(folder, name, model, seed=seed, data=data, measures=("sts", "tasks"))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Records with a task of the user's own: the backbone, and one system with three seeds."""
    folder = tmp_path_factory.mktemp("own")
    for seed in range(4):
        name, model = (f"prompts-{seed}", trained(seed)) if seed else ("backbone", BARE)
        write_own(folder, name, model, seed, triplets(ROWS), ("STS-B", "SICK-R"))
    return folder


def test_seeds_of_a_system_are_compared_together_with_its_bare_backbone(own):
    ((before, after, results),) = comparisons(group(find_records([own])))
    assert (before.name, after.name) == ("backbone", "prompts")
    assert [(one.task, one.measure, one.main) for one in results] == [
        ("mine", "accuracy", True), ("STS", "Spearman, mean of 2 tasks", True),
    ]  # fmt: skip
    found = results[0].comparison
    data = make_data(("STS-B",)).with_tasks([triplets(ROWS)])
    scores = {s: evaluate_suite(Words(s), data, measures=("tasks",)).tasks["mine"].values["accuracy"] for s in range(4)}
    assert found.before == pytest.approx(scores[0])
    assert found.after == pytest.approx(np.mean([scores[seed] for seed in (1, 2, 3)]))
    assert (found.items, found.seeds) == (31, (1, 3))
    assert results[1].comparison.items == 80
    expected = np.mean([record.scores["mean of 2 tasks"] for record in after.records])
    assert results[1].comparison.after == pytest.approx(expected, abs=0.01)


def test_the_report_and_the_command_say_it_in_words_and_numbers(own, cse, tmp_path):
    report = make_report(group(find_records([own])), papers=False)
    verdicts = [row[4] for row in report.further[-1].lines]
    assert set(verdicts) <= {"better", "worse", "no difference at this size"} and len(verdicts) == 2
    for verdict in set(verdicts):
        assert f"{verdict} on {verdicts.count(verdict)}" in report.verdict
    page = as_html(report)
    assert page.index(report.verdict) < page.index('id="comparisons"') < page.index('id="systems-section"')
    once = make_report(group(find_records([own / "backbone", own / "prompts-1"])), papers=False)
    assert once.verdict.endswith(" measures; this one training only")
    done = cse("compare", own, "--json", tmp_path / "found.json")
    assert done.out.splitlines()[0] == "prompts (3 seeds) against backbone (no seed)", done.err
    (tree,) = json.loads((tmp_path / "found.json").read_text())["comparisons"]
    assert (tree["before"], tree["after"]) == ("backbone", "prompts")
    assert [one["seeds"] for one in tree["results"]] == [[1, 3], [1, 3]]


def test_an_unknown_baseline_and_records_of_other_data_are_refused(own, cse, tmp_path):
    line = cse("compare", own, "--baseline", "backbon").refused()
    assert "no system 'backbon'; one of backbone, prompts; did you mean 'backbone'?" in line
    shutil.copytree(own / "backbone", tmp_path / "backbone")
    write_own(tmp_path, "prompts-1", trained(1), 1, triplets(ROWS[1:]))
    assert "measured on 31 items, the other on 30" in refusal(comparisons, group(find_records([tmp_path])))


@pytest.mark.parametrize("rows", [ROWS[::-1], [("z", *row[1:]) for row in ROWS]], ids=["order", "texts"])
def test_as_many_items_that_are_others_are_refused(own, tmp_path, rows):
    """Items are paired by their place, so one in another order would be compared with a stranger."""
    shutil.copytree(own / "backbone", tmp_path / "backbone")
    write_own(tmp_path, "prompts-1", trained(1), 1, triplets(rows))
    told = refusal(comparisons, group(find_records([tmp_path])))
    assert "measured on 31 items, the other on 31 or on others; evaluate both on the same" in told
    shutil.rmtree(tmp_path / "backbone")
    write_own(tmp_path, "backbone", BARE, 0, triplets(rows))
    shutil.copytree(own / "prompts-2", tmp_path / "prompts-2")
    told = refusal(comparisons, group(find_records([tmp_path])))
    assert "mine: seeds of one model were measured on different items" in told


def test_a_backbone_behind_other_task_texts_is_no_baseline(own):
    bare, system = group(find_records([own]))
    first = system.first
    asks = replace(first, scores=first.scores | {"reads": {"texts": {"query": "q: "}}})
    with_texts = replace(system, records=(asks,))
    assert comparisons([bare, with_texts]) == []
    as_it = replace(bare, name="as it", records=(replace(bare.first, scores=bare.first.scores | asks.scores),))
    assert [before.name for before, _, _ in comparisons([bare, as_it, with_texts])] == ["as it"]
